//! One decision tree, grown by the question that says most about the chunk, and written as bytes.

use tandem_random::SplitMix;
use tandem_text::phonemes::features::{
    CLASS, FEATURES, FeatureKind, LETTER_CLASSES, SOUND_CLASSES, kind, letter_in, sound_in, yes,
};
use tandem_text::phonemes::letter_to_sound::LEAF;

/// A letter in its word, and the number of the chunk it says there.
#[derive(Clone)]
pub(crate) struct LetterSample {
    pub(crate) features: [u8; FEATURES],
    pub(crate) chunk: u16,
}

/// When to stop asking, and how far trees of one letter differ.
pub(crate) struct Thrift {
    /// A question must save at least this many bits, over all the samples it is asked of.
    pub(crate) min_gain_bits: f64,
    /// Either answer must be given for at least so many samples.
    pub(crate) min_side: usize,
    /// Out of a hundred features, so many are looked at for a question.
    pub(crate) looked_at: u64,
}

/// Grows a tree for `samples` (of one letter) and appends it to `out`.
pub(crate) fn grow(
    samples: &mut [LetterSample],
    num_chunks: usize,
    thrift: &Thrift,
    chance: &mut SplitMix,
    out: &mut Vec<u8>,
) {
    let Some((feature, value)) = best_question(samples, num_chunks, thrift, chance) else {
        let [high, low] = commonest(samples, num_chunks).to_be_bytes();
        out.extend([high | LEAF, low]);
        return;
    };
    // A stable partition by sorting: the order of the samples, and so the file, stays the same from run to run.
    samples.sort_by_key(|sample| !yes(&sample.features, feature, value));
    let middle = samples.partition_point(|sample| yes(&sample.features, feature, value));
    let (agree, differ) = samples.split_at_mut(middle);
    out.extend([feature, value, 0, 0, 0]);
    let start = out.len();
    grow(agree, num_chunks, thrift, chance, out);
    let [a, b, c, _] = ((out.len() - start) as u32).to_le_bytes();
    out[start - 3..start].copy_from_slice(&[a, b, c]);
    grow(differ, num_chunks, thrift, chance, out);
}

fn commonest(samples: &[LetterSample], num_chunks: usize) -> u16 {
    let mut counts = vec![0usize; num_chunks];
    samples.iter().for_each(|sample| counts[usize::from(sample.chunk)] += 1);
    // The first on a draw.
    counts
        .iter()
        .enumerate()
        .max_by_key(|(chunk, count)| (**count, std::cmp::Reverse(*chunk)))
        .map_or(0, |(c, _)| c as u16)
}

/// Values of one feature are small numbers.
const VALUES: usize = 100;

fn best_question(
    samples: &[LetterSample],
    num_chunks: usize,
    thrift: &Thrift,
    chance: &mut SplitMix,
) -> Option<(u8, u8)> {
    if samples.len() < 2 * thrift.min_side || samples.iter().all(|sample| sample.chunk == samples[0].chunk) {
        return None;
    }
    // Only the chunks that occur here are counted: most nodes see a handful.
    let mut seen = vec![usize::MAX; num_chunks];
    let mut num_seen = 0;
    for sample in samples {
        let slot = &mut seen[usize::from(sample.chunk)];
        if *slot == usize::MAX {
            *slot = num_seen;
            num_seen += 1;
        }
    }
    let mut all = vec![0u32; num_seen];
    samples.iter().for_each(|sample| all[seen[usize::from(sample.chunk)]] += 1);
    let whole = bits(&all);
    let mut best: Option<(f64, (u8, u8))> = None;
    let mut counts = vec![0u32; VALUES * num_seen];
    for feature in 0..FEATURES {
        if chance.below(100) >= thrift.looked_at {
            continue;
        }
        counts.fill(0);
        let mut present = [false; VALUES];
        for sample in samples {
            let value = usize::from(sample.features[feature]);
            present[value] = true;
            counts[value * num_seen + seen[usize::from(sample.chunk)]] += 1;
        }
        let row = |value: usize| &counts[value * num_seen..(value + 1) * num_seen];
        let mut consider = |side: &[u32], value: u8| {
            let agree: u32 = side.iter().sum();
            if (agree as usize) < thrift.min_side || samples.len() - (agree as usize) < thrift.min_side {
                return;
            }
            let other: Vec<u32> = all.iter().zip(side).map(|(all, side)| all - side).collect();
            let gain = whole - bits(side) - bits(&other);
            if gain >= thrift.min_gain_bits && best.is_none_or(|(known, _)| gain > known + 1e-9) {
                best = Some((gain, (feature as u8, value)));
            }
        };
        let values = || (0..VALUES).filter(|value| present[*value]);
        match kind(feature) {
            FeatureKind::Number => {
                let mut sum = vec![0; num_seen];
                for value in values() {
                    add(&mut sum, row(value));
                    consider(&sum, value as u8);
                }
            }
            FeatureKind::Letter | FeatureKind::Sound => {
                values().for_each(|value| consider(row(value), value as u8));
                let (classes, inside): (u8, fn(u8, u8) -> bool) = match kind(feature) {
                    FeatureKind::Letter => (LETTER_CLASSES.len() as u8, letter_in),
                    _ => (SOUND_CLASSES, sound_in),
                };
                for class in 0..classes {
                    let mut sum = vec![0; num_seen];
                    values().filter(|value| inside(*value as u8, class)).for_each(|value| add(&mut sum, row(value)));
                    consider(&sum, CLASS + class);
                }
            }
        }
    }
    best.map(|(_, question)| question)
}

fn add(sum: &mut [u32], row: &[u32]) {
    sum.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
}

/// Bits to say which chunk, for all samples counted.
fn bits(counts: &[u32]) -> f64 {
    let total: u32 = counts.iter().sum();
    let log = |count: u32| if count < 2 { 0.0 } else { f64::from(count) * f64::from(count).log2() };
    log(total) - counts.iter().map(|count| log(*count)).sum::<f64>()
}
