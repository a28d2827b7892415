//! Makes `data/cmudict.bin` from the CMU Pronouncing Dictionary.
//!
//!     cargo run --release -p tandem-text --example pack_dictionary -- cmudict.dict crates/text/data
//!
//! `cmudict.dict` is the dictionary's text form, as the Python package `cmudict` (1.1.3) carries it. Beside the packed
//! file a sample of the original's lines is written: the test that compares the two reads it.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use tandem_text::phonemes::Phone;
use tandem_text::phonemes::dictionary::{BLOCK_WORDS, LONG_CODES, MAGIC, MAX_SHARED};

/// One line of the original in so many goes into the sample.
const SAMPLE_EVERY: usize = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(source), Some(folder)) = (args.next(), args.next()) else {
        return Err("two arguments: the dictionary's text and the folder to write to".into());
    };
    let text = fs::read_to_string(source)?;
    let words = read(&text)?;
    let codes = codes_for(words.values());
    let packed = pack(&words, &codes)?;
    fs::write(Path::new(&folder).join("cmudict.bin"), &packed)?;
    fs::write(Path::new(&folder).join("cmudict_sample.txt"), sample(&words))?;
    writeln!(io::stdout(), "{} words, {} codes, {} bytes", words.len(), codes.len(), packed.len())?;
    Ok(())
}

/// First pronunciations of words that consist of letters, apostrophes and hyphens; spellings with dots are the
/// normaliser's work, and marked alternatives are left out.
fn read(text: &str) -> Result<BTreeMap<&str, Vec<u8>>, Box<dyn Error>> {
    let mut words = BTreeMap::new();
    for line in text.lines() {
        let line = line.split_once('#').map_or(line, |(entry, _comment)| entry);
        let Some((word, phones)) = line.split_once(' ') else { continue };
        if !word.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'\'' | b'-')) {
            continue;
        }
        let phones = phones
            .split_ascii_whitespace()
            .map(|name| Phone::from_name(name).map(Phone::index).ok_or(format!("{word}: what is {name}?")))
            .collect::<Result<Vec<u8>, _>>()?;
        if words.insert(word, phones).is_some() {
            return Err(format!("{word} is there twice").into());
        }
    }
    Ok(words)
}

/// What the codes stand for: each phone, then the pairs of earlier codes that save most, one after the other.
fn codes_for<'a>(words: impl Iterator<Item = &'a Vec<u8>>) -> Vec<Vec<u8>> {
    let mut codes: Vec<Vec<u8>> = Phone::all().map(|phone| vec![phone.index()]).collect();
    let mut words: Vec<Vec<u8>> = words.cloned().collect();
    while codes.len() < usize::from(u8::MAX) {
        let mut pairs: HashMap<(u8, u8), usize> = HashMap::new();
        for pair in words.iter().flat_map(|word| word.windows(2)) {
            *pairs.entry((pair[0], pair[1])).or_default() += 1;
        }
        // The smaller pair on a draw: the file must not depend on the order of a hash table.
        let Some((&(a, b), _)) = pairs.iter().max_by_key(|(pair, count)| (**count, std::cmp::Reverse(**pair))) else {
            break;
        };
        let new = codes.len() as u8;
        codes.push([codes[usize::from(a)].as_slice(), &codes[usize::from(b)]].concat());
        for word in &mut words {
            replace(word, (a, b), new);
        }
    }
    codes
}

fn replace(word: &mut Vec<u8>, pair: (u8, u8), new: u8) {
    let (mut read, mut write) = (0, 0);
    while read < word.len() {
        let hit = word[read] == pair.0 && word.get(read + 1) == Some(&pair.1);
        word[write] = if hit { new } else { word[read] };
        read += if hit { 2 } else { 1 };
        write += 1;
    }
    word.truncate(write);
}

/// The fewest codes that spell `phones`.
fn spell(phones: &[u8], codes: &[Vec<u8>]) -> Vec<u8> {
    // For every length of the beginning: how many codes it takes, and the last of them.
    let mut best: Vec<(usize, u8)> = vec![(0, 0)];
    for end in 1..=phones.len() {
        let ending = codes.iter().enumerate().filter(|(_, code)| phones[..end].ends_with(code));
        let choice = ending.map(|(index, code)| (best[end - code.len()].0 + 1, index as u8)).min();
        best.push(choice.unwrap_or((usize::MAX / 2, 0)));
    }
    let mut spelled = Vec::new();
    let mut end = phones.len();
    while end > 0 {
        spelled.push(best[end].1);
        end -= codes[usize::from(best[end].1)].len();
    }
    spelled.reverse();
    spelled
}

fn pack(words: &BTreeMap<&str, Vec<u8>>, codes: &[Vec<u8>]) -> Result<Vec<u8>, Box<dyn Error>> {
    let (mut offsets, mut entries) = (Vec::new(), Vec::new());
    let mut before = "";
    for (index, (word, phones)) in words.iter().enumerate() {
        if index % BLOCK_WORDS == 0 {
            offsets.extend(u32::try_from(entries.len())?.to_le_bytes());
            before = "";
        }
        // At least one letter is always written: its top bit ends the word.
        let longest = MAX_SHARED.min(word.len() - 1);
        let shared = word.bytes().zip(before.bytes()).take(longest).take_while(|(a, b)| a == b).count();
        let spelled = spell(phones, codes);
        entries.push((shared as u8) << 4 | spelled.len().min(LONG_CODES) as u8);
        entries.extend(&word.as_bytes()[shared..word.len() - 1]);
        entries.extend(word.as_bytes().last().map(|last| last | 0x80));
        if spelled.len() >= LONG_CODES {
            entries.push(u8::try_from(spelled.len())?);
        }
        entries.extend(spelled);
        before = word;
    }
    let mut packed = MAGIC.to_vec();
    packed.extend(u32::try_from(words.len())?.to_le_bytes());
    packed.extend(u32::try_from(offsets.len() / 4)?.to_le_bytes());
    packed.push(u8::try_from(codes.len())?);
    for code in codes {
        packed.push(u8::try_from(code.len())?);
        packed.extend(code);
    }
    packed.extend(offsets);
    packed.extend(entries);
    Ok(packed)
}

fn sample(words: &BTreeMap<&str, Vec<u8>>) -> String {
    let mut text = String::new();
    for (word, phones) in words.iter().step_by(SAMPLE_EVERY) {
        let names = phones.iter().filter_map(|index| Phone::from_index(*index)).map(Phone::name);
        text.push_str(&format!("{word} {}\n", names.collect::<Vec<_>>().join(" ")));
    }
    text
}
