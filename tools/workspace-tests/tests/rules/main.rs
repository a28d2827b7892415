//! Rules of the workspace that no compiler checks.

mod architecture;
mod files;
mod habits;
mod markdown;
mod types;
mod words;
