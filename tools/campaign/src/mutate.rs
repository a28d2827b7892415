//! Mutations of bytes: bit flips, truncation, extreme numbers, blocks moved, copied and removed, splices.

use crate::choices::Choices;

/// Numbers at which readers tend to fail.
const EXTREMES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_fffe,
    0xffff_ffff_ffff_ffff,
];

/// Applies `count` random mutations. `other` is another file to splice with. Returns what was done, in order.
pub(crate) fn mutate(bytes: &mut Vec<u8>, other: &[u8], count: usize, choices: &mut Choices) -> Vec<&'static str> {
    (0..count).map(|_| mutate_once(bytes, other, choices)).collect()
}

fn mutate_once(bytes: &mut Vec<u8>, other: &[u8], choices: &mut Choices) -> &'static str {
    if bytes.is_empty() {
        *bytes = noise(choices.between(1, 64), choices);
        return "noise";
    }
    let at = position(bytes.len(), choices);
    match choices.below(16) {
        0..4 => {
            for _ in 0..choices.between(1, 8) {
                let at = position(bytes.len(), choices);
                bytes[at] ^= 1 << choices.below(8);
            }
            "bit flips"
        }
        4..8 => {
            let width = *choices.pick(&[1, 2, 4, 8]);
            let number = *choices.pick(&EXTREMES);
            let big_endian = choices.one_in(2);
            overwrite(bytes, at, &number_bytes(number, width, big_endian));
            "extreme number"
        }
        8 => {
            bytes.truncate(at);
            "truncated"
        }
        9 => {
            let end = block_end(at, bytes.len(), choices);
            bytes.drain(at..end);
            "block deleted"
        }
        10 => {
            let end = block_end(at, bytes.len(), choices);
            let block = bytes[at..end].to_vec();
            let to = choices.below(bytes.len() + 1);
            bytes.splice(to..to, block);
            "block duplicated"
        }
        11 => {
            let end = block_end(at, bytes.len(), choices);
            let fill = *choices.pick(&[0, 0xff]);
            bytes[at..end].fill(fill);
            "block filled"
        }
        12 => {
            let from = choices.below(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
            "spliced"
        }
        13 => {
            let from = choices.below(other.len() + 1);
            let end = block_end(from, other.len(), choices);
            bytes.splice(at..at, other[from..end].iter().copied());
            "block inserted"
        }
        14 => {
            let tail = noise(choices.between(1, 512), choices);
            bytes.extend(tail);
            "noise appended"
        }
        _ => {
            let end = block_end(at, bytes.len(), choices);
            let length = end - at;
            let block = noise(length, choices);
            bytes[at..end].copy_from_slice(&block);
            "noise"
        }
    }
}

/// A place in a file: half of the time in its first 64 bytes, where headers are.
fn position(length: usize, choices: &mut Choices) -> usize {
    if choices.one_in(2) { choices.below(length.min(64)) } else { choices.below(length) }
}

/// The end of a block from `at`: mostly short, sometimes up to the whole rest.
fn block_end(at: usize, length: usize, choices: &mut Choices) -> usize {
    let rest = length - at;
    let longest = if choices.one_in(4) { rest } else { rest.min(64) };
    at + choices.between(longest.min(1), longest)
}

fn noise(length: usize, choices: &mut Choices) -> Vec<u8> {
    (0..length).map(|_| choices.bits() as u8).collect()
}

/// The low `width` bytes of `number`.
pub(crate) fn number_bytes(number: u64, width: usize, big_endian: bool) -> Vec<u8> {
    match big_endian {
        true => number.to_be_bytes()[8 - width..].to_vec(),
        false => number.to_le_bytes()[..width].to_vec(),
    }
}

/// Replaces bytes from `at`, as many as there are.
pub(crate) fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (old, new) in bytes.iter_mut().skip(at).zip(new) {
        *old = *new;
    }
}

/// An extreme number.
pub(crate) fn extreme(choices: &mut Choices) -> u64 {
    *choices.pick(&EXTREMES)
}

/// Replaces one number in a text, such as JSON or YAML, by an extreme one. Does nothing without a number.
pub(crate) fn replace_number(text: &mut Vec<u8>, choices: &mut Choices) {
    const NUMBERS: [&str; 18] = [
        "0",
        "-0",
        "1",
        "-1",
        "255",
        "65536",
        "2147483648",
        "4294967296",
        "9223372036854775807",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775809",
        "1e308",
        "-1e308",
        "1e400",
        "1e-400",
        "0.0000001",
        "NaN",
    ];
    let starts: Vec<usize> = (0..text.len())
        .filter(|at| text[*at].is_ascii_digit() && (*at == 0 || !text[*at - 1].is_ascii_alphanumeric()))
        .collect();
    if starts.is_empty() {
        return;
    }
    let start = *choices.pick(&starts);
    let is_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+');
    let length = text[start..].iter().take_while(|byte| is_number(byte)).count();
    let number = *choices.pick(&NUMBERS);
    text.splice(start..start + length, number.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutated(seed: u64) -> (Vec<u8>, Vec<&'static str>) {
        let mut bytes: Vec<u8> = (0..2000_u32).map(|i| (i % 251) as u8).collect();
        let other = vec![7; 500];
        let done = mutate(&mut bytes, &other, 3, &mut Choices::of_case(seed, 0, 0));
        (bytes, done)
    }

    #[test]
    fn mutations_are_a_function_of_the_seed() {
        for seed in 0..200 {
            assert_eq!(mutated(seed), mutated(seed));
        }
        assert!((0..200).any(|seed| mutated(seed) != mutated(seed + 200)));
    }

    #[test]
    fn every_mutation_happens_and_nearly_all_change_the_bytes() {
        let intact: Vec<u8> = (0..2000_u32).map(|i| (i % 251) as u8).collect();
        let all: Vec<_> = (0..1000).map(mutated).collect();
        let kinds: std::collections::BTreeSet<_> = all.iter().flat_map(|(_, done)| done).collect();
        assert!(kinds.len() >= 10, "{kinds:?}");
        assert!(all.iter().filter(|(bytes, _)| *bytes == intact).count() < 20);
    }

    #[test]
    fn an_empty_file_can_be_mutated() {
        let mut bytes = Vec::new();
        mutate(&mut bytes, &[], 50, &mut Choices::of_case(1, 0, 0));
    }

    #[test]
    fn a_number_in_a_text_is_replaced() {
        let mut text = b"{\"a\": 12.5}".to_vec();
        replace_number(&mut text, &mut Choices::of_case(1, 0, 0));
        assert!(text.starts_with(b"{\"a\": ") && text.ends_with(b"}") && text != b"{\"a\": 12.5}");
        let mut none = b"none".to_vec();
        replace_number(&mut none, &mut Choices::of_case(1, 0, 0));
        assert_eq!(none, b"none");
    }
}
