//! Which phones come from which letter, found by expectation and maximisation.
//!
//! Every letter says a chunk: nothing, one phone or two. Chunks of a letter start out alike and are counted, over all
//! ways to split every word, by how likely each way is under the counts of the round before.

use tandem_text::phonemes::Phone;

/// A word and its phones.
pub(crate) struct Entry {
    pub(crate) letters: Vec<u8>,
    pub(crate) phones: Vec<u8>,
}

const ROUNDS: usize = 12;
/// A chunk a letter says less often than this, over the whole dictionary, is an accident of one spelling.
const RARE: f64 = 4.0;

const PHONES: usize = Phone::COUNT;
const CHUNKS: usize = 1 + PHONES + PHONES * PHONES;

fn chunk(phones: &[u8]) -> usize {
    match *phones {
        [a] => 1 + usize::from(a),
        [a, b] => 1 + PHONES + usize::from(a) * PHONES + usize::from(b),
        _ => 0,
    }
}

/// For each letter, how likely each chunk is.
pub(crate) struct Aligner {
    likely: Vec<f64>,
}

impl Aligner {
    /// Learns from all entries.
    pub(crate) fn learn(entries: &[Entry]) -> Aligner {
        let mut likely = vec![1.0; 26 * CHUNKS];
        for letter in likely.chunks_mut(CHUNKS) {
            // Two phones from one letter are the exception: they must earn their place.
            letter[1 + PHONES..].fill(0.002);
        }
        let mut aligner = Aligner { likely };
        for round in 0..ROUNDS {
            let mut counts = vec![0.0; 26 * CHUNKS];
            for entry in entries {
                aligner.count(entry, &mut counts);
            }
            let last_rounds = round + 3 >= ROUNDS;
            for letter in counts.chunks_mut(CHUNKS) {
                if last_rounds {
                    letter.iter_mut().filter(|count| **count < RARE).for_each(|count| *count = 0.0);
                }
                let sum: f64 = letter.iter().sum();
                letter.iter_mut().for_each(|count| *count /= sum.max(1e-300));
            }
            aligner.likely = counts;
        }
        aligner
    }

    fn weight(&self, letter: u8, phones: &[u8]) -> f64 {
        self.likely[usize::from(letter - b'a') * CHUNKS + chunk(phones)]
    }

    /// Adds the expected number of times each letter says each chunk in `entry`.
    fn count(&self, entry: &Entry, counts: &mut [f64]) {
        let (n, m) = (entry.letters.len(), entry.phones.len());
        let width = m + 1;
        let mut forward = vec![0.0; (n + 1) * width];
        let mut backward = vec![0.0; (n + 1) * width];
        forward[0] = 1.0;
        backward[n * width + m] = 1.0;
        for i in 0..n {
            for j in 0..=m {
                for len in 0..=2.min(m - j) {
                    let weight = self.weight(entry.letters[i], &entry.phones[j..j + len]);
                    forward[(i + 1) * width + j + len] += forward[i * width + j] * weight;
                }
            }
        }
        let total = forward[n * width + m];
        if total <= 0.0 {
            return;
        }
        for i in (0..n).rev() {
            for j in 0..=m {
                for len in 0..=2.min(m - j) {
                    let weight = self.weight(entry.letters[i], &entry.phones[j..j + len]);
                    let after = backward[(i + 1) * width + j + len];
                    backward[i * width + j] += weight * after;
                    let place = usize::from(entry.letters[i] - b'a') * CHUNKS + chunk(&entry.phones[j..j + len]);
                    counts[place] += forward[i * width + j] * weight * after / total;
                }
            }
        }
    }

    /// The likeliest number of phones of each letter; nothing when the word cannot be said letter by letter.
    pub(crate) fn align(&self, entry: &Entry) -> Option<Vec<usize>> {
        let (n, m) = (entry.letters.len(), entry.phones.len());
        let width = m + 1;
        let mut best = vec![(0.0, 0usize); (n + 1) * width];
        best[0].0 = 1.0;
        for i in 0..n {
            for j in 0..=m {
                for len in 0..=2.min(m - j) {
                    let score = best[i * width + j].0 * self.weight(entry.letters[i], &entry.phones[j..j + len]);
                    let cell = &mut best[(i + 1) * width + j + len];
                    if score > cell.0 {
                        *cell = (score, len);
                    }
                }
            }
        }
        let mut j = m;
        if best[n * width + m].0 <= 0.0 {
            return None;
        }
        let mut lengths = vec![0; n];
        for i in (0..n).rev() {
            lengths[i] = best[(i + 1) * width + j].1;
            j -= lengths[i];
        }
        Some(lengths)
    }
}
