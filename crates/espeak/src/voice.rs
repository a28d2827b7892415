//! A voice as a source of phonemes for the front end of a language.

use std::sync::Arc;

use tandem_text::{PhonemeSource, TextError};

use crate::error::EspeakError;
use crate::espeak::Espeak;

/// The phonemes of one language.
#[derive(Clone, Debug)]
pub struct EspeakVoice {
    espeak: Arc<Espeak>,
    tag: String,
}

impl Espeak {
    /// The voice of a language. Fails with [`EspeakError::NoVoice`] if there is none, before a text needs it.
    pub fn voice(self: &Arc<Self>, tag: &str) -> Result<EspeakVoice, EspeakError> {
        self.phonemes(tag, "a")?;
        Ok(EspeakVoice { espeak: Arc::clone(self), tag: tag.to_owned() })
    }
}

impl PhonemeSource for EspeakVoice {
    fn phonemes(&self, clause: &str) -> Result<String, TextError> {
        let failed = |error: EspeakError| TextError::NotPhonemized { tag: self.tag.clone(), reason: error.to_string() };
        self.espeak.phonemes(&self.tag, clause).map_err(failed)
    }
}
