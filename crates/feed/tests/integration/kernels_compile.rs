//! The feed's kernels compile for every supported architecture, without register spills. Needs no GPU.

use std::io::Write as _;

use tandem_device::compile::{Compiler, complaints, signature_complaints};
use tandem_feed::kernels::{KERNELS, SOURCES};

#[test]
fn every_kernel_compiles_for_every_architecture_without_spills() {
    match Compiler::open(None) {
        Ok(compiler) => assert_eq!(complaints(&compiler, SOURCES), Vec::<String>::new()),
        Err(error) => {
            let required = std::env::var_os("TANDEM_REQUIRE_NVRTC").is_some_and(|value| value == "1");
            assert!(!required, "TANDEM_REQUIRE_NVRTC=1, but {error}");
            // Directly to stderr: the test harness would hide that the check was skipped.
            let _ = writeln!(std::io::stderr(), "\nSKIPPED: no kernel was compiled. {error}\n");
        }
    }
}

#[test]
fn declarations_match_the_cuda_text() {
    assert_eq!(signature_complaints(SOURCES, KERNELS), Vec::<String>::new());
}
