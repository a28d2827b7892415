//! From a clause to phonemes.

use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::EspeakError;
use crate::library::{EspeakLibrary, LIBRARY_VARIABLE};
use crate::readable::readable;
use crate::voices::{VoiceTag, find};

/// The one instance: the library has one state for the whole process.
static LOADED: Mutex<Option<Arc<Espeak>>> = Mutex::new(None);

/// The espeak-ng library of the system.
///
/// Holding one means that the library and its data are loaded. The library is not thread-safe: calls wait for each other.
#[derive(Debug)]
pub struct Espeak {
    version: String,
    voices: Vec<VoiceTag>,
    state: Mutex<EspeakState>,
}

#[derive(Debug)]
struct EspeakState {
    library: EspeakLibrary,
    /// The voice that is set.
    voice: Option<CString>,
}

impl Espeak {
    /// The library, loaded at the first call. The environment variable `TANDEM_ESPEAK_LIBRARY` names another file, and
    /// `ESPEAK_DATA_PATH` another folder of data.
    ///
    /// Costs some milliseconds once. Never ends the process; a failure can be tried again.
    pub fn load() -> Result<Arc<Espeak>, EspeakError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(espeak) = &*loaded {
            return Ok(espeak.clone());
        }
        let mut library = EspeakLibrary::open(std::env::var_os(LIBRARY_VARIABLE))?;
        let version = library.version().to_owned();
        let voices = library.voices();
        let state = Mutex::new(EspeakState { library, voice: None });
        let espeak = Arc::new(Espeak { version, voices, state });
        *loaded = Some(espeak.clone());
        Ok(espeak)
    }

    /// The version of the library, such as `1.51`. Phonemes differ between versions.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The phonemes of `clause` in the language of `voice_tag`: IPA with stress marks before the vowels (`ˈ`, `ˌ`), and a
    /// space between words. Numbers and abbreviations are read by the library's rules. Punctuation only separates words.
    /// Words of more than 40 characters are cut.
    ///
    /// The tag is one such as `de`, `en-us` or `pt_BR`; `de-AT` is read as `de`. Words of another language, which the
    /// library reads by that language's rules, have no marks around them.
    ///
    /// The same clause gives the same phonemes from any thread and after any other clause. It is empty if nothing in the
    /// clause is spoken. Changing the voice costs about as much as ten clauses.
    ///
    /// Fails with [`EspeakError::NoVoice`] for a language that the library does not know, and with
    /// [`EspeakError::Unreadable`] for letters of another script and for symbols such as emoji. Latin letters are read in
    /// every language.
    pub fn phonemes(&self, voice_tag: &str, clause: &str) -> Result<String, EspeakError> {
        let voice = find(&self.voices, voice_tag).ok_or_else(|| self.no_voice(voice_tag))?;
        let text = readable(clause, voice_tag)
            .map_err(|characters| EspeakError::Unreadable { tag: voice_tag.to_owned(), characters })?;
        let text = CString::new(text).map_err(|_| self.failed(clause, "a zero in the text"))?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let EspeakState { library, voice: current } = &mut *state;
        if current.as_deref() != Some(voice) {
            *current = None;
            library.set_voice(voice).map_err(|code| self.bad_voice(voice.to_string_lossy().into_owned(), code))?;
            *current = Some(voice.to_owned());
        }
        // The library looks one character ahead. What it did not read at the end of a clause ("a..") would begin this one.
        library.text_to_phonemes(c" ").map_err(|why| self.failed(clause, why))?;
        let clauses = library.text_to_phonemes(&text).map_err(|why| self.failed(clause, why))?;
        drop(state);
        Ok(plain(&clauses.join(" ")))
    }

    fn no_voice(&self, tag: &str) -> EspeakError {
        let mut names: Vec<_> = self.voices.iter().map(|voice| &voice.identifier).collect();
        names.dedup();
        EspeakError::NoVoice { tag: tag.to_owned(), version: self.version.clone(), voices: names.len() }
    }

    fn bad_voice(&self, voice: String, code: i32) -> EspeakError {
        EspeakError::BadVoice { voice, version: self.version.clone(), code }
    }

    fn failed(&self, clause: &str, why: &'static str) -> EspeakError {
        EspeakError::Failed { clause: clause.to_owned(), version: self.version.clone(), why }
    }
}

/// Phonemes without marks of another language, such as `(en)` before and `(de)` after an English word, and with single
/// spaces.
fn plain(phonemes: &str) -> String {
    let mut out = String::with_capacity(phonemes.len());
    let mut rest = phonemes;
    while let Some((before, behind)) = rest.split_once('(') {
        out.push_str(before);
        let is_tag = |tag: &str| !tag.is_empty() && tag.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        match behind.split_once(')').filter(|(tag, _)| is_tag(tag)) {
            Some((_, after)) => rest = after,
            None => {
                out.push('(');
                rest = behind;
            }
        }
    }
    out.push_str(rest);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_another_language_go() {
        assert_eq!(plain("vɑːɾ (en)kˈuːl(de)  ɔ"), "vɑːɾ kˈuːl ɔ");
        assert_eq!(plain("(zh-cmn)a(en-us)"), "a");
        assert_eq!(plain(" a ( b (c"), "a ( b (c");
        assert_eq!(plain(" "), "");
    }
}
