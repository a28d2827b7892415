//! Private words do not come back. CONTRIBUTING.md has the words to use.

use crate::files::all;

/// A word this tree does not use, in the sense it once had here.
struct Rule {
    /// Words or phrases, lower case. A word is also found inside identifiers (`told_of`, `ToldOf`).
    words: &'static [&'static str],
    /// Where: paths that begin so. Empty means everywhere.
    scope: &'static [&'static str],
    /// What to say.
    instead: &'static str,
    /// A line with one of these, lower case, uses the word in its ordinary sense.
    fine: &'static [&'static str],
}

/// Lines that a failure lists.
const MOST: usize = 60;

const EVERYWHERE: &[&str] = &[];

const RULES: &[Rule] = &[
    Rule {
        words: &["told", "telling"],
        scope: EVERYWHERE,
        instead: "report, display, log, on_progress",
        fine: &["told apart"],
    },
    Rule { words: &["twin", "twins"], scope: EVERYWHERE, instead: "host kernel", fine: &[] },
    Rule { words: &["headspace"], scope: EVERYWHERE, instead: "model-only throughput", fine: &[] },
    Rule { words: &["heard"], scope: EVERYWHERE, instead: "listener, event buffer, valid frames", fine: &[] },
    Rule { words: &["material", "materials"], scope: EVERYWHERE, instead: "training set", fine: &[] },
    Rule { words: &["holder", "holders"], scope: EVERYWHERE, instead: "owner, memory kind", fine: &[] },
    Rule { words: &["outlet", "dealer"], scope: EVERYWHERE, instead: "non-blocking writer, row queue", fine: &[] },
    Rule { words: &["calendar"], scope: EVERYWHERE, instead: "run schedule", fine: &[] },
    Rule {
        words: &["planted", "plants", "planting", "tandem_plant"],
        scope: EVERYWHERE,
        instead: "injected fault, TANDEM_FAULT",
        fine: &[],
    },
    Rule {
        words: &["trial", "trials"],
        scope: EVERYWHERE,
        instead: "timed run, proof, try",
        fine: &["trial and error"],
    },
    Rule {
        words: &["site", "sites"],
        scope: EVERYWHERE,
        instead: "inventory, context",
        fine: &["call site", "launch site", "site-packages"],
    },
    Rule { words: &["ground"], scope: EVERYWHERE, instead: "bench context", fine: &["ground truth"] },
    Rule { words: &["under way", "under_way"], scope: EVERYWHERE, instead: "in flight", fine: &[] },
    Rule {
        words: &["hold_ups", "hold up", "hold-ups", "holds up", "held up"],
        scope: EVERYWHERE,
        instead: "delay, block, injected delay",
        fine: &[],
    },
    Rule {
        words: &["way across", "road", "roads", "crossing", "crossings"],
        scope: EVERYWHERE,
        instead: "transfer, route",
        fine: &["zero crossing", "zero-crossing"],
    },
    Rule {
        words: &["manner", "manners"],
        scope: EVERYWHERE,
        instead: "speech options, output style",
        fine: &["manner of articulation", "manner::"],
    },
    Rule { words: &["upload_few", "copy_few", "download_few"], scope: EVERYWHERE, instead: "copy_small", fine: &[] },
    Rule {
        words: &["aloud", "in silence", "anew", "guessing the mean"],
        scope: EVERYWHERE,
        instead: "with a warning, silently, again, a constant mean prediction",
        fine: &[],
    },
    Rule {
        words: &["goes on from", "go on from", "going on from", "gone on from"],
        scope: EVERYWHERE,
        instead: "resume from",
        fine: &[],
    },
    Rule { words: &["moment::", "way::"], scope: EVERYWHERE, instead: "StartupPhase, DecoderKind", fine: &[] },
    Rule {
        words: &["tandem_trial", "tandem_watch", "tandem-trial", "tandem-watch"],
        scope: EVERYWHERE,
        instead: "launch, bench, runlog",
        fine: &[],
    },
    Rule {
        words: &[
            "kept", "wide", "aside", "asides", "guest", "guests", "lent", "lend", "spot", "spots", "draws", "brings",
            "bring",
        ],
        scope: &["crates/engine/"],
        instead: "saved, accumulator, side stream, aliased, reusable, placement, RNG keys, stage inputs",
        fine: &["set aside", "bytes wide", "block-wide"],
    },
    Rule {
        words: &["mixtures", "mixture", "tilt", "hide"],
        scope: &["crates/engine/src/ops/"],
        instead: "acc_o, dnorm_mean, mask",
        fine: &["hide the latency"],
    },
    Rule { words: &["kept"], scope: &["crates/feed/"], instead: "cached, stored", fine: &[] },
    Rule {
        words: &["product", "products"],
        scope: &["crates/device/", "crates/engine/", "crates/bench/", "crates/model/"],
        instead: "GEMM, matmul",
        fine: &[".product(", ".product::<", "dot product", "inner product", "outer product"],
    },
    Rule {
        words: &["recordings", "recorded work", "recorded program"],
        scope: &["crates/device/", "crates/engine/"],
        instead: "captured graph",
        fine: &["audio"],
    },
];

/// Files that may use these words: they name what was renamed, or are data.
const EXEMPT: &[(&str, &str)] = &[
    ("CHANGELOG.md", "names what was renamed"),
    ("tools/workspace-tests/tests/rules/words.rs", "lists the words"),
    ("crates/corpus/src/demo/", "the phonetic manner of articulation"),
    ("crates/events/src/event.rs", "reads logs of version 1 by their old names"),
    ("crates/runlog/tests/integration/run_log.rs", "names what version 1 wrote"),
    ("crates/text/src/normalize/english/abbreviations.rs", "words that are spoken"),
    ("crates/text/data/", "a dictionary"),
];

#[test]
fn private_words_do_not_come_back() {
    let mut found = Vec::new();
    for file in all(&[".rs", ".cu", ".cuh", ".md", ".py", ".toml", ".yml"]) {
        if EXEMPT.iter().any(|(path, _)| file.path.starts_with(path)) {
            continue;
        }
        let rules = RULES
            .iter()
            .filter(|rule| rule.scope.is_empty() || rule.scope.iter().any(|scope| file.path.starts_with(scope)));
        let rules: Vec<&Rule> = rules.collect();
        for (number, line) in file.lines() {
            for (word, rule) in broken(line, &rules) {
                found.push(format!("{}:{number}: \"{word}\" (say: {}): {}", file.path, rule.instead, line.trim()));
            }
        }
    }
    let count = found.len();
    found.truncate(MOST);
    assert!(found.is_empty(), "{count} lines, the first of them: {found:#?}");
}

fn broken<'a>(line: &str, rules: &[&'a Rule]) -> Vec<(&'static str, &'a Rule)> {
    let lower = line.to_lowercase();
    let parts = words_of(line);
    let uses = |word: &str| match word.contains([' ', '_', '-', ':']) {
        true => lower.contains(word),
        false => parts.iter().any(|part| part == word),
    };
    let broken = rules.iter().filter(|rule| !rule.fine.iter().any(|fine| lower.contains(fine)));
    broken.flat_map(|rule| rule.words.iter().filter(|word| uses(word)).map(|word| (*word, *rule))).collect()
}

/// The words of a line, lower case: identifiers are cut at underscores and capitals.
fn words_of(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in line.chars() {
        let cut = !c.is_alphabetic() || (c.is_uppercase() && after_lower);
        if cut && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if c.is_alphabetic() {
            words.last_mut().unwrap().extend(c.to_lowercase());
        }
        after_lower = c.is_lowercase();
    }
    words
}

#[test]
fn words_are_found_inside_identifiers_and_phrases_in_lines() {
    assert_eq!(words_of("let x_told = ToldOf::new(); // Twin."), ["let", "x", "told", "told", "of", "new", "twin", ""]);
    let rules: Vec<&Rule> = RULES.iter().collect();
    assert_eq!(broken("fn create_told(", &rules).len(), 1);
    assert_eq!(broken("eight reads are under way", &rules).len(), 1);
    assert_eq!(broken("let n = shape.iter().product::<usize>();", &rules).len(), 0);
    assert_eq!(broken("a threshold holds", &rules).len(), 0);
}
