//! A short hash of many strings: corpora with other ids or texts have other fingerprints.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

/// A hash that is fed string by string.
#[derive(Default)]
pub struct Fingerprint {
    hash: XxHash3_64,
}

impl Fingerprint {
    /// The fingerprint of no strings.
    pub fn new() -> Fingerprint {
        Fingerprint::default()
    }

    /// Adds strings. The boundaries between them count.
    pub fn take(&mut self, strings: &[&str]) {
        for string in strings {
            self.hash.write(string.as_bytes());
            self.hash.write(&[0xFF]);
        }
    }

    /// Adds bytes.
    pub fn take_bytes(&mut self, bytes: &[u8]) {
        self.hash.write(bytes);
    }

    /// The hash as sixteen hexadecimal digits.
    pub fn hex(&self) -> String {
        format!("{:016x}", self.hash.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_their_boundaries_and_their_order_count() {
        let of = |strings: &[&str]| {
            let mut fingerprint = Fingerprint::new();
            fingerprint.take(strings);
            fingerprint.hex()
        };
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        let others = [of(&["a", "b"]), of(&["b", "a"]), of(&["ab"]), of(&["a", "b", ""]), of(&[])];
        let different: std::collections::BTreeSet<&String> = others.iter().collect();
        assert_eq!(different.len(), others.len());
    }
}
