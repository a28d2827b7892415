//! Kernels of generic code and kernels made at run time are kernels like any other.

use std::marker::PhantomData;

use tandem_events::Role;

use super::*;
use crate::arena::{Arena, ArenaSpec};
use crate::machine::Machine;

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

/// A kernel for every type, as a constant of a generic type.
struct Double<T>(PhantomData<T>);

impl<T: Real> Double<T> {
    const KERNEL: Kernel = Kernel {
        name: T::NAME,
        source: &SOURCE,
        params: &[Param::In(T::DTYPE), Param::Out(T::DTYPE)],
        host: &double::<T>,
    };
}

fn double<T: Real>(args: &mut HostArgs<'_>) {
    let from = args.read::<T>(0);
    args.workers().each_chunk(args.write::<T>(1), 2, |i, out| {
        out.iter_mut().zip(&from[2 * i..]).for_each(|(out, x)| *out = *x + *x);
    });
}

/// Runs a kernel over `values` on the CPU.
fn run<T: Element>(kernel: &'static Kernel, values: &[T]) -> Result<Vec<T>, DeviceError> {
    let device = Machine::cpu().open(0)?;
    let arena_bytes = 4096;
    let spec = ArenaSpec { role: Role::Model, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: false };
    let arena = Arena::reserve_as(&device, spec, false)?;
    let stream = device.stream(false)?;
    let bytes = size_of_val(values) as u64;
    let (from, to) = (arena.take("from", bytes)?, arena.take("to", bytes)?);
    let mut host = device.pinned(bytes)?;
    host.bytes_mut()?.copy_from_slice(bytemuck::cast_slice(values));
    stream.upload(&host, 0..bytes, from.view())?;
    stream.launch(
        &device.load(kernel)?,
        Grid::cover(1, 1),
        &[Arg::read::<T>(from.view()), Arg::write::<T>(to.view())],
    )?;
    stream.download(to.view(), &mut host, 0..bytes)?;
    stream.drain()?;
    Ok(bytemuck::cast_slice(host.bytes()?).to_vec())
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
fn the_element_type_is_checked() {
    let error = run(&Double::<f64>::KERNEL, &[1f32, 2.0]).unwrap_err().to_string();
    assert!(error.contains("double_f64") && error.contains("F64"), "{error}");
}

#[test]
fn a_kernel_made_at_run_time_carries_what_it_was_made_from() {
    let factors = vec![2.0, 3.0];
    let host = move |args: &mut HostArgs<'_>| {
        let from = args.read::<f64>(0);
        let gemms = from.iter().zip(&factors).map(|(x, factor)| x * factor);
        args.write::<f64>(1).iter_mut().zip(gemms).for_each(|(out, x)| *out = x);
    };
    let kernel: &'static Kernel = Box::leak(Box::new(Kernel {
        name: "made",
        source: &SOURCE,
        params: &[Param::In(DType::F64), Param::Out(DType::F64)],
        host: Box::leak(Box::new(host)),
    }));
    assert_eq!(run(kernel, &[5.0, 7.0]).unwrap(), [10.0, 21.0]);
}
