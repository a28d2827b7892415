//! Every kernel of this crate compiles for every supported architecture, without spills.
//!
//! Needs NVRTC but no GPU. Without NVRTC the tests print a warning and pass, unless `TANDEM_REQUIRE_NVRTC=1`.

use tandem_device::compile::{
    ARCHITECTURES, Compiler, Resources, compiler_or_skip, kernel_problems, signature_problems,
};
use tandem_device::kernels::{KERNELS, SOURCES};
use tandem_device::{DeviceError, Source, Workers};

/// The resources of each kernel of `source` on `arch`; panics with the compiler's log if it does not compile.
fn used(compiler: &Compiler, source: &Source, arch: &str) -> Vec<Resources> {
    match compiler.compile(source, arch) {
        Ok(compiled) => {
            assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} for {arch} is no CUBIN", source.file);
            compiled.resources()
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_kernel_compiles_for_every_architecture_without_spills() {
    let Some(compiler) = compiler_or_skip() else { return };
    assert_eq!(kernel_problems(&compiler, SOURCES), Vec::<String>::new());
}

#[test]
fn declarations_match_the_cuda_text() {
    assert_eq!(signature_problems(SOURCES, KERNELS), Vec::<String>::new());
}

#[test]
fn problems_name_the_kernel_and_the_architecture() {
    let Some(compiler) = compiler_or_skip() else { return };
    let wrong = Source { file: "wrong.cu", text: "extern \"C\" __global__ void wrong(u32* out) { out[0] = nothing; }" };
    let found = kernel_problems(&compiler, &[&wrong]);
    assert!(found.len() == ARCHITECTURES.len() && found[0].contains("wrong.cu"), "{found:?}");
}

#[test]
fn a_kernel_that_spills_is_detected() {
    let Some(compiler) = compiler_or_skip() else { return };
    let source = Source {
        file: "spilling.cu",
        text: "extern \"C\" __global__ void __launch_bounds__(1024, 2) spilling(const f32* in, f32* out) {\n\
               f32 x[96];\n\
               #pragma unroll\n\
               for (int i = 0; i < 96; i++) x[i] = in[threadIdx.x * 96 + i];\n\
               __syncthreads();\n\
               #pragma unroll\n\
               for (int i = 0; i < 96; i++) out[threadIdx.x * 96 + i] = x[i] * x[95 - i] + x[(i * 7) % 96];\n}\n",
    };
    let kernels = used(&compiler, &source, "sm_90");
    assert!(kernels.len() == 1 && kernels[0].spill_store_bytes > 0 && !kernels[0].in_registers(), "{kernels:?}");
}

#[test]
fn a_kernel_that_needs_a_stack_is_detected() {
    let Some(compiler) = compiler_or_skip() else { return };
    let source = Source {
        file: "stack.cu",
        text: "extern \"C\" __global__ void stack(const i32* in, i32* out) {\n\
               i32 x[64];\n\
               for (i32 i = 0; i < 64; i++) x[in[i] & 63] = i;\n\
               out[threadIdx.x] = x[in[threadIdx.x] & 63];\n}\n",
    };
    let kernels = used(&compiler, &source, "sm_90");
    assert!(kernels.len() == 1 && kernels[0].stack_bytes > 0 && !kernels[0].in_registers(), "{kernels:?}");
}

#[test]
fn a_compile_error_is_reported_with_file_and_line() {
    let Some(compiler) = compiler_or_skip() else { return };
    let text = "extern \"C\" __global__ void wrong(u32* out) {\n    out[0] = nothing_of_that_name;\n}\n";
    let source = Source { file: "wrong.cu", text };
    let error = compiler.compile(&source, "sm_90").unwrap_err();
    let DeviceError::Compile { file: "wrong.cu", log, .. } = &error else { panic!("{error}") };
    assert!(log.contains("wrong.cu(2)") && log.contains("nothing_of_that_name"), "{log}");
}

#[test]
fn an_unknown_architecture_asks_for_a_newer_compiler() {
    let Some(compiler) = compiler_or_skip() else { return };
    let error = compiler.compile(&Source { file: "none.cu", text: "" }, "sm_990").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DeviceError::Library(_)) && text.contains("sm_990"), "{text}");
}

#[test]
fn the_prelude_compiles_for_every_architecture() {
    let Some(compiler) = compiler_or_skip() else { return };
    let source = Source {
        file: "prelude_use.cu",
        text: "extern \"C\" __global__ void convert(const f32* __restrict__ in, bf16* __restrict__ out, u64 n) {\n\
               for (u64 i = thread_index(); i < n; i += thread_count())\n\
               out[i] = bf16(clamp_to((f32)bf16(in[i]), -1.0f, max_of(1.0f, 2.0f)));\n}\n",
    };
    for arch in ARCHITECTURES {
        assert!(used(&compiler, &source, arch)[0].in_registers());
    }
}

#[test]
fn sources_compiled_in_parallel_give_the_same_cubins() {
    let Some(compiler) = compiler_or_skip() else { return };
    let compile = |i: usize| compiler.compile(SOURCES[i % SOURCES.len()], "sm_90").map(|made| made.cubin);
    let mut made: Vec<Option<Result<Vec<u8>, DeviceError>>> = (0..8).map(|_| None).collect();
    Workers::with_threads(4).each_chunk(&mut made, 1, |i, made| made[0] = Some(compile(i)));
    for (i, made) in made.into_iter().enumerate() {
        assert!(made.and_then(Result::ok) == compile(i).ok(), "{}", SOURCES[i % SOURCES.len()].file);
    }
}
