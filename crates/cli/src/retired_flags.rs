//! Flags of older Python trainers that have no meaning here: one line says what replaces each.

use std::ffi::OsString;

use clap::error::ErrorKind;
use tandem_plan::Retired;

/// The answer to every retired flag among `words`, if `error` is about an unknown flag and there is one.
pub(crate) fn answer(error: &clap::Error, words: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let mut lines = Vec::new();
    for word in words.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != "--") {
        let Some(flag) = word.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or(flag)) else { continue };
        // Some trainers write flags in snake case.
        let Some(retired) = Retired::of_flag(&flag.replace('_', "-")) else { continue };
        let line = format!("❌ --{flag} has no meaning here: {}", retired.instead);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}
