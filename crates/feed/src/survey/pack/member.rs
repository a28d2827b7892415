//! Names of the members of a shard.
//!
//! Readers of WebDataset end a name at its first dot, pass over parts like `__meta__` and hidden files, and take a member for a
//! recording only if its extension says so. Names of recordings promise none of this: they end in `.001`, in `.opus`, or in the
//! signature of a URL. A name is therefore made of the id with few characters, and of the extension that the content says.

use std::collections::HashMap;

use tandem_corpus::EXTENSIONS;
use twox_hash::XxHash3_64;

/// The most bytes of a name without extension: with the rest of a path, less than file systems take.
const MAX_NAME_BYTES: usize = 200;

/// The names of a set of shards, each used once.
#[derive(Default)]
pub(super) struct MemberNames {
    /// By the hash of a name that is taken, the last number that was added to it.
    taken: HashMap<u64, u32>,
}

impl MemberNames {
    /// A free name for the members of the utterance `id`, without extension. It is taken afterwards.
    pub(super) fn take(&mut self, id: &str) -> String {
        let plain = plain_name(id);
        let hash = |name: &str| XxHash3_64::oneshot(name.as_bytes());
        let Some(last) = self.taken.get(&hash(&plain)) else {
            self.taken.insert(hash(&plain), 1);
            return plain;
        };
        let mut number = *last;
        // A name whose hash is taken gets a number, even if it is another name.
        let name = loop {
            number += 1;
            let name = format!("{plain}_{number}");
            if !self.taken.contains_key(&hash(&name)) {
                break name;
            }
        };
        self.taken.insert(hash(&plain), number);
        self.taken.insert(hash(&name), 1);
        name
    }
}

/// `id` with letters, digits and `-_+@,`; other characters are `_`. Slashes stay between parts, of which none leads elsewhere.
fn plain_name(id: &str) -> String {
    let parts = id.split('/').filter(|part| !matches!(*part, "" | "." | ".."));
    let mut name = parts.map(plain_part).collect::<Vec<_>>().join("/");
    if name.len() > MAX_NAME_BYTES {
        name.truncate(name.floor_char_boundary(MAX_NAME_BYTES));
        name.truncate(name.trim_end_matches('/').len());
    }
    if name.is_empty() { "utterance".to_owned() } else { name }
}

/// At most one `_` at its beginning: readers pass over names like `__meta__`.
fn plain_part(part: &str) -> String {
    let plain: String =
        part.chars().map(|c| if c.is_alphanumeric() || "-_+@,".contains(c) { c } else { '_' }).collect();
    let rest = plain.trim_start_matches('_');
    if plain.starts_with('_') { format!("_{rest}") } else { plain }
}

/// The extension of a recording that begins with `bytes`. `named` is that of its own name, which decides where the content says
/// nothing, if it is one of a recording.
pub(super) fn extension_of(bytes: &[u8], named: Option<&str>) -> &'static str {
    match bytes {
        [b'R', b'I', b'F', b'F' | b'X', ..] | [b'R', b'F', b'6', b'4', ..] => "wav",
        [b'f', b'L', b'a', b'C', ..] => "flac",
        [b'O', b'g', b'g', b'S', ..] => "ogg",
        [b'I', b'D', b'3', ..] => "mp3",
        // The sync word of a frame. Layer 0 is AAC.
        [0xFF, second, ..] if second & 0xE0 == 0xE0 && second & 0x06 != 0 => "mp3",
        _ => {
            let known = |named: &str| EXTENSIONS.into_iter().find(|known| named.eq_ignore_ascii_case(known));
            named.and_then(known).unwrap_or("wav")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_few_characters_and_lead_nowhere() {
        let check = |id: &str, expected: &str| assert_eq!(plain_name(id), expected, "{id}");
        check("LJ001-0002", "LJ001-0002");
        check("p225/p225_001@1.5", "p225/p225_001@1_5");
        check("a,b+c", "a,b+c");
        check("c.wav?sig=x&y", "c_wav_sig_x_y");
        check("../../etc//passwd/.", "etc/passwd");
        check("https://host/a b", "https_/host/a_b");
        check("__meta__/__init__", "_meta__/_init__");
        check(".hidden/..a", "_hidden/_a");
        check("C:\\x\0y", "C__x_y");
        check("سلام/été", "سلام/été");
        check("..", "utterance");
        check("", "utterance");
        check(&"é".repeat(300), &"é".repeat(100));
        check(&format!("{}/b", "a".repeat(199)), &"a".repeat(199));
    }

    #[test]
    fn a_name_is_used_once() {
        let mut names = MemberNames::default();
        let mut check = |id: &str, expected: &str| assert_eq!(names.take(id), expected, "{id}");
        check("a.b", "a_b");
        check("a_b_2", "a_b_2");
        check("a b", "a_b_3");
        check("a:b", "a_b_4");
        check("a_b_2", "a_b_2_2");
        check("c", "c");
    }

    #[test]
    fn the_content_says_the_extension() {
        let check = |bytes: &[u8], named: Option<&str>, expected: &str| {
            assert_eq!(extension_of(bytes, named), expected, "{bytes:?} {named:?}");
        };
        check(b"RIFF....WAVE", Some("mp3"), "wav");
        check(b"RIFX....WAVE", None, "wav");
        check(b"RF64....WAVE", Some("001"), "wav");
        check(b"fLaC", Some("wav"), "flac");
        check(b"OggS", Some("opus"), "ogg");
        check(b"ID3\x04", Some("bin"), "mp3");
        check(b"\xFF\xFB\x90", None, "mp3");
        check(b"\xFF\xF3\x90", None, "mp3");
        // AAC, as its name says.
        check(b"\xFF\xF1\x50", Some("aac"), "wav");
        check(b"\0\0\xFF\xFB", Some("MP3"), "mp3");
        check(b"", Some("Flac"), "flac");
        check(b"RI", Some("wave"), "wav");
    }
}
