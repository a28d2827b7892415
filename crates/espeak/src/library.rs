//! The library: where it is, and those of its functions that are called.
//!
//! The functions are those of `speak_lib.h`, which have been the same since espeak-ng 1.49 (2016).

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::os::unix::Library;

use crate::error::EspeakError;
use crate::voices::VoiceTag;

/// A file to use instead of the system's library.
pub(crate) const LIBRARY_VARIABLE: &str = "TANDEM_ESPEAK_LIBRARY";
/// Its names: the second is that of the package for developers.
const NAMES: [&str; 2] = ["libespeak-ng.so.1", "libespeak-ng.so"];

/// `AUDIO_OUTPUT_SYNCHRONOUS`: opens no sound card.
const SYNCHRONOUS: c_int = 2;
/// `espeakINITIALIZE_DONT_EXIT`: without it, missing data ends the process.
const DONT_EXIT: c_int = 0x8000;
/// `espeakCHARS_UTF8`. Without `espeakSSML` and `espeakPHONEMES`, text has no commands in it.
const UTF8: c_int = 1;
/// `espeakPHONEMES_IPA`.
const IPA: c_int = 2;

/// `espeak_VOICE`.
#[repr(C)]
struct CVoice {
    name: *const c_char,
    languages: *const c_char,
    identifier: *const c_char,
    gender: u8,
    age: u8,
    variant: u8,
    xx1: u8,
    score: c_int,
    spare: *mut c_void,
}

type Initialize = unsafe extern "C" fn(c_int, c_int, *const c_char, c_int) -> c_int;
type Info = unsafe extern "C" fn(*mut *const c_char) -> *const c_char;
type ListVoices = unsafe extern "C" fn(*mut CVoice) -> *const *const CVoice;
type SetVoiceByName = unsafe extern "C" fn(*const c_char) -> c_int;
type TextToPhonemes = unsafe extern "C" fn(*mut *const c_void, c_int, c_int) -> *const c_char;

/// The open library, with its data loaded. Its functions share global state: only one thread may call them at a time,
/// which `&mut self` ensures for the one instance there is.
#[derive(Debug)]
pub(crate) struct EspeakLibrary {
    list_voices: ListVoices,
    set_voice_by_name: SetVoiceByName,
    text_to_phonemes: TextToPhonemes,
    version: String,
    /// Never closed: version 1.51 starts a thread that would lose its code.
    _library: ManuallyDrop<Library>,
}

impl EspeakLibrary {
    /// Opens the file that `TANDEM_ESPEAK_LIBRARY` names, else the system's library, and loads its data.
    ///
    /// Sets the character type of the C locale (`LC_CTYPE`) to UTF-8, which nothing in Rust depends on.
    pub(crate) fn open(given: Option<OsString>) -> Result<EspeakLibrary, EspeakError> {
        let given = given.filter(|file| !file.is_empty()).map(PathBuf::from);
        let (library, path) = match given {
            Some(path) => open_file(&path)?,
            None => ask_loader()?,
        };
        let initialize: Initialize = symbol(&library, "espeak_Initialize", &path)?;
        let info: Info = symbol(&library, "espeak_Info", &path)?;
        let list_voices = symbol(&library, "espeak_ListVoices", &path)?;
        let set_voice_by_name = symbol(&library, "espeak_SetVoiceByName", &path)?;
        let text_to_phonemes = symbol(&library, "espeak_TextToPhonemes", &path)?;
        // SAFETY: the arguments are those of `espeak_Initialize`; a null path means the usual one. `Espeak::load` holds a
        // lock, so that no other thread is in the library.
        let rate_hz = unsafe { initialize(SYNCHRONOUS, 0, ptr::null(), DONT_EXIT) };
        let mut folder = ptr::null();
        // SAFETY: it writes one pointer into `folder`, and returns the static text of its version.
        let version = unsafe { text(info(&raw mut folder)) };
        let version = version.split(' ').next().unwrap_or_default().to_owned();
        if rate_hz <= 0 {
            // SAFETY: the pointer is null, or that of a static buffer with a terminated path.
            return Err(EspeakError::NoData { version, folder: PathBuf::from(unsafe { text(folder) }) });
        }
        let _library = ManuallyDrop::new(library);
        Ok(EspeakLibrary { list_voices, set_voice_by_name, text_to_phonemes, version, _library })
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The languages of every voice.
    pub(crate) fn voices(&mut self) -> Vec<VoiceTag> {
        let mut found = Vec::new();
        // SAFETY: without a voice to compare with, it returns a list that ends with a null pointer and is valid until the
        // next call. Null is checked all the same.
        let mut entry = unsafe { (self.list_voices)(ptr::null_mut()) };
        while !entry.is_null() {
            // SAFETY: `entry` is in the list, at most at its null pointer.
            let voice = unsafe { (*entry).as_ref() };
            let Some(voice) = voice else { break };
            // SAFETY: both are terminated texts of the library, valid until the next call.
            unsafe { push_languages(voice, &mut found) };
            // SAFETY: the entry was not the null pointer at the end, so that another follows.
            entry = unsafe { entry.add(1) };
        }
        found
    }

    /// Makes `voice` the voice of the next texts. Its name comes from [`EspeakLibrary::voices`]: the library takes other
    /// names for paths.
    pub(crate) fn set_voice(&mut self, voice: &CStr) -> Result<(), c_int> {
        // SAFETY: the name is a terminated text, which the library copies.
        match unsafe { (self.set_voice_by_name)(voice.as_ptr()) } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// The phonemes of a text, clause by clause, in the voice that was set.
    pub(crate) fn text_to_phonemes(&mut self, text: &CStr) -> Result<Vec<String>, &'static str> {
        let mut clauses = Vec::new();
        let mut rest: *const c_void = text.as_ptr().cast();
        // A clause takes at least a byte. One that took none would never end.
        for _ in 0..text.count_bytes() + 2 {
            // SAFETY: `rest` points into `text` or to its end, and `text` lives until this function returns.
            let phonemes = unsafe { (self.text_to_phonemes)(&raw mut rest, UTF8, IPA) };
            if phonemes.is_null() {
                return Err("a null pointer");
            }
            // SAFETY: a terminated text of the library, valid until the next call.
            let phonemes = unsafe { CStr::from_ptr(phonemes) };
            clauses.push(phonemes.to_str().map_err(|_| "bytes that are not UTF-8")?.to_owned());
            if rest.is_null() {
                return Ok(clauses);
            }
        }
        Err("clauses without an end")
    }
}

fn open_file(path: &Path) -> Result<(Library, PathBuf), EspeakError> {
    if !path.is_file() {
        return Err(EspeakError::NotFound { searched: vec![format!("{} ({LIBRARY_VARIABLE})", path.display())] });
    }
    // SAFETY: this runs the library's initialisers; the user chose the file.
    let library = unsafe { Library::new(path) };
    let library = library.map_err(|error| EspeakError::CannotOpen { path: path.to_owned(), why: message(&error) });
    Ok((library?, path.to_owned()))
}

fn ask_loader() -> Result<(Library, PathBuf), EspeakError> {
    for name in NAMES {
        // SAFETY: this runs the library's initialisers; it is the system's, under its own name.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok((library, PathBuf::from(name))),
            Err(error) => {
                let why = message(&error);
                // The loader's message for "no such file", if it is about this name and not about a dependency of it.
                let is_absent = why.starts_with(name) && why.contains("cannot open shared object file");
                if !is_absent {
                    return Err(EspeakError::CannotOpen { path: PathBuf::from(name), why });
                }
            }
        }
    }
    let searched = NAMES.iter().map(|name| format!("{name} (in the folders of the system's loader)"));
    Err(EspeakError::NotFound { searched: searched.chain([format!("the file in {LIBRARY_VARIABLE}")]).collect() })
}

/// The function `name`, as the type that the caller assigns it to.
fn symbol<F: Copy>(library: &Library, name: &'static str, path: &Path) -> Result<F, EspeakError> {
    // SAFETY: the types in this file are those of `speak_lib.h`.
    let found = unsafe { library.get::<F>(name) };
    found.map(|found| *found).map_err(|_| EspeakError::MissingSymbol { path: path.to_owned(), symbol: name })
}

/// The loader's message is the source of the wrapper's error.
fn message(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Adds the languages of a voice: bytes of priority, each with a terminated tag behind it, and a zero at the end.
///
/// # Safety
///
/// `voice` comes from `espeak_ListVoices`, and the library was not called since.
unsafe fn push_languages(voice: &CVoice, found: &mut Vec<VoiceTag>) {
    if voice.identifier.is_null() || voice.languages.is_null() {
        return;
    }
    // SAFETY: not null, and terminated, as the caller promises.
    let identifier = unsafe { CStr::from_ptr(voice.identifier) };
    let mut at = voice.languages;
    loop {
        // SAFETY: `at` is at a byte of priority or at the zero behind the last tag.
        let priority = unsafe { at.cast::<u8>().read() };
        if priority == 0 {
            return;
        }
        // SAFETY: a terminated tag follows the priority, and another byte follows the tag.
        let tag = unsafe { CStr::from_ptr(at.add(1)) };
        found.push(VoiceTag {
            tag: tag.to_string_lossy().to_lowercase(),
            priority,
            identifier: CString::from(identifier),
        });
        // SAFETY: as above.
        at = unsafe { at.add(2 + tag.count_bytes()) };
    }
}

/// A text of the library, or none for a null pointer.
///
/// # Safety
///
/// `text` is null or a terminated text.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn check(file: impl AsRef<OsStr>, parts: &[&str]) {
        let file = file.as_ref();
        let error = EspeakLibrary::open(Some(file.to_owned())).unwrap_err().to_string();
        let usual = ["sudo apt install libespeak-ng1 espeak-ng-data", "--lexicon", "--phonemizer characters"];
        for part in parts.iter().chain(&usual).chain(&[file.to_str().unwrap()]) {
            assert!(error.contains(part), "{part} in {error}");
        }
    }

    #[test]
    fn a_file_that_is_not_the_library_is_named_with_what_to_install() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path().join("nothing.so"), &["was not found", LIBRARY_VARIABLE]);
        let notes = folder.path().join("notes.so");
        std::fs::write(&notes, "not a library").unwrap();
        check(&notes, &["cannot be opened", "file too short"]);
        check(folder.path(), &["was not found"]);
        // Another library of the system, at its full path.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find(|line| line.contains("/libc.so")).and_then(|line| line.split_whitespace().last());
        check(libc.unwrap(), &["lacks the function espeak_Initialize"]);
    }
}
