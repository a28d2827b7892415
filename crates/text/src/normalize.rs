//! Raw text to the text that is spoken: one spelling for one sound, nothing left that has to be interpreted.
//!
//! Every language starts with the same cleaning ([`unicode`]); English and Persian then write out numbers and the like.
//! What no rule knows is kept, so that it is reported later instead of vanishing here.

pub mod unicode;
pub mod english;
pub mod persian;

pub(crate) use persian::is_harakat;
pub use persian::{Harakat, without_harakat};

use crate::language::Language;

/// `text` as `language` says it. Never fails; time is linear in the text.
pub fn normalize(text: &str, language: Language, harakat: Harakat) -> String {
    match language {
        Language::English => english::normalize(text),
        Language::Persian => persian::normalize(text, harakat),
        Language::Other => unicode::clean(text),
    }
}
