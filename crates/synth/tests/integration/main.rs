//! What the crate promises its users.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod speech;
