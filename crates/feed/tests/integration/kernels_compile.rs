//! The feed's kernels compile for every supported architecture, without register spills. Needs no GPU.

use tandem_device::compile::{compiler_or_skip, kernel_problems, signature_problems};
use tandem_feed::kernels::{KERNELS, SOURCES};

#[test]
fn every_kernel_compiles_for_every_architecture_without_spills() {
    let Some(compiler) = compiler_or_skip() else { return };
    assert_eq!(kernel_problems(&compiler, SOURCES), Vec::<String>::new());
}

#[test]
fn declarations_match_the_cuda_text() {
    assert_eq!(signature_problems(SOURCES, KERNELS), Vec::<String>::new());
}
