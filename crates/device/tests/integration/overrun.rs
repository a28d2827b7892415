//! Fault injection: a kernel that writes one element too far. compute-sanitizer must find it in split mode.
//!
//! Run on a machine with a card; it must report one invalid write and exit with 9:
//! `TANDEM_ARENA=split compute-sanitizer --error-exitcode 9 <this test's binary> --ignored overrun::`.

use tandem_device::{Arena, ArenaSpec, Grid, HostArgs, Kernel, Machine, Source, kernel_args};
use tandem_events::Role;

static SOURCE: Source = Source {
    file: "device/tests/integration/overrun.cu",
    text: "extern \"C\" __global__ void overrun(u32* out, u64 words) {\n\
           u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;\n\
           if (i <= words) out[i] = 1;\n}\n",
};

kernel_args! {
    /// Arguments of `overrun`.
    struct OverrunArgs { out: out u32, words: u64 }
}

static OVERRUN: Kernel = Kernel {
    name: "overrun",
    source: &SOURCE,
    params: OverrunArgs::params(),
    host: &|args: &mut HostArgs<'_>| OverrunArgs::host(args).out.fill(1),
};

#[test]
#[ignore = "an injected fault: run under compute-sanitizer on an NVIDIA card"]
fn one_element_too_far() {
    let machine = Machine::cuda().expect("the CUDA driver can be used").expect("this test needs an NVIDIA card");
    let device = machine.open(0).unwrap();
    let arena_bytes = 32 << 20;
    let spec = ArenaSpec::new(Role::Data, arena_bytes);
    let arena = Arena::reserve(&device, spec).unwrap();
    let stream = device.stream(false).unwrap();
    let overrun = device.load(&OVERRUN).unwrap();
    let block = arena.take("short by one", 1000 * 4).unwrap();
    stream.launch(&overrun, Grid::cover(1001, 128), OverrunArgs { out: block.view(), words: 1000 }).unwrap();
    stream.drain().unwrap();
}
