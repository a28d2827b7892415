//! A short name for a lot of text: two corpora with other ids or texts have other fingerprints.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

/// A hash that is fed piece by piece.
#[derive(Default)]
pub struct Fingerprint {
    hash: XxHash3_64,
}

impl Fingerprint {
    /// Of nothing yet.
    pub fn new() -> Fingerprint {
        Fingerprint::default()
    }

    /// Takes pieces in. Where one ends and the next begins matters.
    pub fn take(&mut self, pieces: &[&str]) {
        for piece in pieces {
            self.hash.write(piece.as_bytes());
            self.hash.write(&[0xFF]);
        }
    }

    /// Sixteen hexadecimal digits.
    pub fn hex(&self) -> String {
        format!("{:016x}", self.hash.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_count_and_so_does_their_order() {
        let of = |pieces: &[&str]| {
            let mut fingerprint = Fingerprint::new();
            fingerprint.take(pieces);
            fingerprint.hex()
        };
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        let others = [of(&["a", "b"]), of(&["b", "a"]), of(&["ab"]), of(&["a", "b", ""]), of(&[])];
        let different: std::collections::BTreeSet<&String> = others.iter().collect();
        assert_eq!(different.len(), others.len());
    }
}
