//! The crate through its public door, with the library of this machine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod absent;
mod reference;
mod state;

use std::sync::Arc;

use tandem_espeak::{Espeak, EspeakError};
use tandem_test_support::skip;

/// The library; without it `what` is skipped, unless `TANDEM_REQUIRE_ESPEAK=1`.
#[track_caller]
fn espeak_or_skip(what: &str) -> Option<Arc<Espeak>> {
    match Espeak::load() {
        Ok(espeak) => Some(espeak),
        Err(error @ (EspeakError::NotFound { .. } | EspeakError::NoData { .. })) => {
            skip("TANDEM_REQUIRE_ESPEAK", what, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}
