//! Kernels of generic code and kernels made at run time are kernels like any other.

use std::marker::PhantomData;

use tandem_events::Role;

use super::*;
use crate::arena::{Arena, ArenaSpec};
use crate::device::LoadedKernel;
use crate::kernel_args;
use crate::machine::Machine;
use crate::stream::Stream;

static SOURCE: Source = Source { file: "device/tests/double.cu", text: "" };

trait Real: Element + std::ops::Add<Output = Self> {
    const NAME: &'static str;
}

impl Real for f32 {
    const NAME: &'static str = "double_f32";
}

impl Real for f64 {
    const NAME: &'static str = "double_f64";
}

kernel_args! {
    /// Arguments of `double`.
    struct DoubleArgs<T: Element> { from: in T, to: out T }
}

/// A kernel for every type, as a constant of a generic type.
struct Double<T>(PhantomData<T>);

impl<T: Real> Double<T> {
    const KERNEL: Kernel =
        Kernel { name: T::NAME, source: &SOURCE, params: DoubleArgs::params::<T>(), host: &double::<T> };
}

fn double<T: Real>(args: &mut HostArgs<'_>) {
    let DoubleArgs { from, to } = DoubleArgs::host::<T>(args);
    args.workers().each_chunk(to, 2, |i, out| {
        out.iter_mut().zip(&from[2 * i..]).for_each(|(out, x)| *out = *x + *x);
    });
}

/// Runs a kernel over `values` on the CPU.
fn run<T: Element>(kernel: &'static Kernel, values: &[T]) -> Result<Vec<T>, DeviceError> {
    run_with(kernel, values, |stream, loaded, from, to| {
        stream.launch(loaded, Grid::cover(1, 1), DoubleArgs { from, to })
    })
}

/// The same with a launch of the caller's: given the memory that `values` are in, and as much memory for the result.
fn run_with<T: Element>(
    kernel: &'static Kernel,
    values: &[T],
    launch: impl FnOnce(&Stream, &LoadedKernel, View<'_>, View<'_>) -> Result<(), DeviceError>,
) -> Result<Vec<T>, DeviceError> {
    let device = Machine::cpu().open(0)?;
    let arena_bytes = 4096;
    let spec = ArenaSpec::new(Role::Model, arena_bytes);
    let arena = Arena::reserve_as(&device, spec, false)?;
    let stream = device.stream(false)?;
    let bytes = size_of_val(values) as u64;
    let (from, to) = (arena.take("from", bytes)?, arena.take("to", bytes)?);
    let mut host = device.pinned(bytes)?;
    host.bytes_mut()?.copy_from_slice(bytemuck::cast_slice(values));
    stream.upload(&host, 0..bytes, from.view())?;
    launch(&stream, &device.load(kernel)?, from.view(), to.view())?;
    stream.download(to.view(), &mut host, 0..bytes)?;
    stream.drain()?;
    Ok(bytemuck::cast_slice(host.bytes()?).to_vec())
}

/// The message of a launch that is refused.
fn refused(launch: impl FnOnce(&Stream, &LoadedKernel, View<'_>, View<'_>) -> Result<(), DeviceError>) -> String {
    run_with(&Double::<f64>::KERNEL, &[1f64, 2.0], launch).unwrap_err().to_string()
}

/// A constant of a generic type is `'static` where one is asked for: nothing has to be leaked or listed for it.
fn doubled<T: Real>(values: &[T]) -> Result<Vec<T>, DeviceError> {
    run(&Double::<T>::KERNEL, values)
}

#[test]
fn a_constant_of_a_generic_type_is_a_kernel() {
    assert_eq!(doubled(&[1f32, 2.5, -3.0]).unwrap(), [2.0, 5.0, -6.0]);
    assert_eq!(doubled(&[1f64, 2.5, -3.0]).unwrap(), [2.0, 5.0, -6.0]);
}

#[test]
fn a_refused_argument_is_named() {
    let grid = Grid::cover(1, 1);
    let error = refused(|stream, loaded, from, to| {
        stream.launch_args(loaded, grid, &[Arg::In(from, DType::F32), Arg::Out(to, DType::F64)])
    });
    assert_eq!(error, "kernel double_f64: `from` is F64 memory to read, given F32 memory to read");
    let error = refused(|stream, loaded, from, _| stream.launch(loaded, grid, DoubleArgs { from, to: from }));
    assert_eq!(error, "kernel double_f64: `from` and `to` overlap, and one of them is written");
    let error = run(&Double::<f64>::KERNEL, &[1f32, 2.0, 3.0]).unwrap_err().to_string();
    assert_eq!(error, "kernel double_f64: `from` is not whole, aligned elements of F64");
}

#[test]
fn arguments_of_another_kernel_are_refused() {
    kernel_args! { struct CopyArgs { source: in f64, to: out f64 } }
    kernel_args! { struct FillArgs { from: in f64 } }
    kernel_args! { struct PowerArgs { from: in f64, to: out f64, exponent: u32 } }
    kernel_args! { struct SumArgs { from: in f64, to: u64 } }
    let grid = Grid::cover(1, 1);
    let error = refused(|stream, loaded, source, to| stream.launch(loaded, grid, CopyArgs { source, to }));
    assert_eq!(error, "kernel double_f64: takes `from`, F64 memory to read, where it is given `source`");
    let error = refused(|stream, loaded, from, _| stream.launch(loaded, grid, FillArgs { from }));
    assert_eq!(error, "kernel double_f64: is not given `to`");
    let error = refused(|stream, loaded, from, to| stream.launch(loaded, grid, PowerArgs { from, to, exponent: 2 }));
    assert_eq!(error, "kernel double_f64: takes 2 arguments, and no `exponent`");
    let error = refused(|stream, loaded, from, _| stream.launch(loaded, grid, SumArgs { from, to: 2 }));
    assert_eq!(error, "kernel double_f64: takes `to`, F64 memory to write, where it is given `to`");
}

#[test]
#[should_panic(expected = "the host kernel takes `from` as F32 memory to read, the next parameter is `from`, F64")]
fn a_host_kernel_takes_the_arguments_of_its_own_declaration() {
    static WRONG: Kernel = Kernel {
        name: "double_f64",
        source: &SOURCE,
        params: DoubleArgs::params::<f64>(),
        host: &|args: &mut HostArgs<'_>| {
            DoubleArgs::host::<f32>(args);
        },
    };
    let _ = run(&WRONG, &[1f64]);
}

#[test]
fn a_kernel_made_at_run_time_carries_what_it_was_made_from() {
    let factors = vec![2.0, 3.0];
    let host = move |args: &mut HostArgs<'_>| {
        let DoubleArgs { from, to } = DoubleArgs::host::<f64>(args);
        let scaled = from.iter().zip(&factors).map(|(x, factor)| x * factor);
        to.iter_mut().zip(scaled).for_each(|(to, x)| *to = x);
    };
    let kernel: &'static Kernel = Box::leak(Box::new(Kernel {
        name: "made",
        source: &SOURCE,
        params: DoubleArgs::params::<f64>(),
        host: Box::leak(Box::new(host)),
    }));
    assert_eq!(run(kernel, &[5.0, 7.0]).unwrap(), [10.0, 21.0]);
}
