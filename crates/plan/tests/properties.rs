//! Properties for any settings on any machine: nothing panics, every suggestion works, every plan fits.
#![expect(clippy::expect_used, reason = "the generators produce valid values only")]

use std::iter::repeat_n;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tandem_corpus::SampleIndex;
use tandem_device::bytes::{MIB, POOL_GRANULE};
use tandem_device::{CardProcess, DeviceKind, DriverCost};
use tandem_events::Role;
use tandem_feed::{Bucket, CacheSpec, Extent};
use tandem_model::Preset;
use tandem_plan::{
    CorpusFacts, Hardware, HostFacts, Mode, ModelCatalog, ModelChoice, ModelMemory, Plan, PlanLine, Precision,
    ProgramKind, Reason, Refusal, RolePlan, Settings, Suggestion, plan_json, refusal_json,
};

/// Models whose memory is a formula. Two thousand cases try some hundred thousand shapes, and the real model takes
/// milliseconds for each.
struct Formula;

struct FormulaModel(ModelChoice);

impl ModelCatalog for Formula {
    fn memory_of(&self, choice: ModelChoice, _: DeviceKind) -> Box<dyn ModelMemory> {
        Box::new(FormulaModel(choice))
    }
}

impl ModelMemory for FormulaModel {
    fn describe(&self) -> String {
        self.0.preset.name().to_owned()
    }

    fn persistent(&self) -> Vec<PlanLine> {
        let rank = Preset::ALL.iter().position(|preset| *preset == self.0.preset).unwrap_or(0) as u32;
        let parameters = (2 * MIB) * 4_u64.pow(rank);
        let compute =
            (self.0.precision == Precision::Mixed).then(|| PlanLine::new("compute parameters", 2 * parameters));
        let average = self.0.ema.then(|| PlanLine::new("averaged parameters", 4 * parameters));
        [PlanLine::new("parameters", 16 * parameters)].into_iter().chain(compute).chain(average).collect()
    }

    fn tables(&self, buckets: &[Bucket]) -> u64 {
        buckets.iter().map(|bucket| 256 * bucket.batch()).sum()
    }

    fn bytes(&self, program: ProgramKind, bucket: &Bucket) -> u64 {
        let width = if self.0.precision == Precision::Mixed { 2 } else { 4 };
        let per_frame = match program {
            ProgramKind::Accumulate => 8192,
            ProgramKind::Update => 0,
            ProgramKind::Validate | ProgramKind::Sample => 1024,
        };
        width * per_frame * bucket.frames()
    }
}

type Change = (&'static str, String);

fn counts(flag: &'static str, values: &'static [u64]) -> BoxedStrategy<Change> {
    select(values).prop_map(move |n| (flag, n.to_string())).boxed()
}

fn words(flag: &'static str, values: &'static [&'static str]) -> BoxedStrategy<Change> {
    select(values).prop_map(move |word| (flag, word.to_owned())).boxed()
}

fn change() -> impl Strategy<Value = Change> {
    let limits = &["auto", "auto:0.9", "auto:0.05", "64", "800", "2048", "8192", "20000", "16777216"];
    prop_oneof![
        counts("batch-size", &[1, 3, 16, 64, 65536]),
        counts("grad-accum", &[1, 2, 3, 16, 65536]),
        counts("max-mel-frames", &[8, 100, 1000, 5000, 100_000]),
        counts("max-text-length", &[1, 200, 10_000]),
        counts("buffer-size", &[1, 10, 50, 65536]),
        counts("prefetch-buffer-size", &[1, 2, 3, 1024]),
        counts("gpu", &[0, 1, 7]),
        counts("num-workers", &[1, 99]),
        counts("verify-transfers", &[1, 2, 1_000_000]),
        counts("read-ahead-mb", &[0, 64, 3000, 1_048_576]),
        words("model-size", &["nano", "tiny", "small", "normal", "big"]),
        words("optimization-level", &["basic", "enhanced"]),
        words("mixed-precision", &["true", "false"]),
        words("mode", &["single", "dual", "cpu", "auto"]),
        words("transfer", &["auto", "peer", "bounce", "handover"]),
        words("share-gpu", &["true"]),
        words("enable-memory-isolation", &["true"]),
        words("data-gpu-memory", limits),
        words("model-gpu-memory", limits),
    ]
}

/// Mostly common settings: a pair of cards or a shared card, often isolated, then random changes.
fn settings() -> impl Strategy<Value = Settings> {
    let on = |flag: &'static str| vec![(flag, "true".to_owned())];
    let pair = |data: u64, model: u64| vec![("data-gpu", data.to_string()), ("model-gpu", model.to_string())];
    let place = prop_oneof![
        Just(Vec::new()),
        Just(pair(0, 1)),
        Just(pair(1, 0)),
        Just(pair(0, 0)),
        Just(on("share-gpu")),
        Just(vec![("data-gpu", "0".to_owned())]),
    ];
    let isolation = prop_oneof![Just(Vec::new()), Just(on("enable-memory-isolation"))];
    (place, isolation, vec(change(), 0..6)).prop_map(|(place, isolation, others)| {
        let changes: Vec<Change> = place.into_iter().chain(isolation).chain(others).collect();
        Settings::new().with(&changes).expect("only valid values are generated")
    })
}

fn hardware() -> impl Strategy<Value = Hardware> {
    let cards = vec((0.0..=1.0f64, select(&[(6u32, 1u32), (7, 5), (8, 0), (9, 0)][..]), any::<bool>(), 0..8u8), 0..4);
    let sizes = select(&[512u64, 1024, 2048, 6144, 24_576, 81_920][..]);
    let driver_error = option::weighted(0.05, Just("libcuda.so.1 was not found; searched /usr/lib".to_owned()));
    (cards, sizes, any::<bool>(), driver_error, select(&[1u64, 512, 4096, 65_536][..])).prop_map(
        |(cards, total_mb, peers, driver_error, host_mb)| {
            let driver = DriverCost { model_modules_bytes: 90 * MIB, ..DriverCost::table() };
            let host = HostFacts { available_bytes: host_mb * MIB, limited_by: None, cores: 4 };
            let mut hardware = Hardware::simulated(cards.len(), total_mb * MIB, &driver, host);
            hardware.peer = vec![vec![peers; cards.len()]; cards.len()];
            hardware.driver_error = driver_error;
            for (facts, (free, capability, busy, rare)) in hardware.cards.iter_mut().zip(cards) {
                let used = if busy { ((1.0 - free) * total_mb as f64) as u64 * MIB } else { 0 };
                facts.reading.free_bytes -= used;
                facts.reading.processes = vec![CardProcess { pid: 7, name: None, bytes: used / 2 }];
                facts.card.capability = if rare == 0 { capability } else { (8, 0) };
                facts.card.hidden_by = (rare == 1).then(|| "CUDA_VISIBLE_DEVICES".to_owned());
            }
            hardware
        },
    )
}

/// None in half of the cases; otherwise a few recordings of any length, with exact token counts or upper bounds, some of them
/// several times in an epoch.
fn corpus() -> impl Strategy<Value = Option<CorpusFacts>> {
    let rows = vec((1..3000u32, 1..300u32), 0..60);
    let rates = select(vec![vec![], vec![16_000], vec![8_000, 48_000]]);
    option::weighted(
        0.5,
        (rows, rates, any::<bool>(), any::<bool>(), 1..4_usize).prop_map(
            |(rows, rates_hz, exact_tokens, is_remote, most)| {
                let row =
                    |(i, (frames, tokens)): (usize, (u32, u32))| (SampleIndex(i as u32), Extent { frames, tokens });
                let mut facts = CorpusFacts::new("any", rows.into_iter().enumerate().map(row).collect());
                (facts.rates_hz, facts.exact_tokens, facts.is_remote) = (rates_hz, exact_tokens, is_remote);
                let times = |index: SampleIndex| 1 + index.at() % most;
                let repeated = facts.rows().iter().flat_map(|row| repeat_n(*row, times(row.0))).collect();
                facts.with_epoch_rows(repeated)
            },
        ),
    )
}

fn check_shapes(plan: &Plan, corpus: Option<&CorpusFacts>) {
    let (batch, buckets) = (plan.batch_size / plan.grad_accum, &plan.feed.buckets);
    assert!(!buckets.is_empty() && buckets.len() <= 2);
    assert!(buckets.iter().all(|bucket| bucket.batch() == batch));
    assert!(buckets.iter().all(|bucket| bucket.longest_tokens() <= plan.max_text_length));
    assert!(buckets.iter().all(|bucket| bucket.longest_frames() <= plan.max_mel_frames.next_multiple_of(8)));
    assert_eq!(plan.corpus.is_some(), corpus.is_some());
    let (Some(corpus), Some(planned)) = (corpus, &plan.corpus) else { return };
    assert!(planned.num_utterances as u64 >= plan.batch_size);
    assert_eq!(planned.num_utterances + planned.left_out.total(), corpus.rows().len());
    assert!((planned.num_utterances..=corpus.epoch_rows().len()).contains(&planned.epoch_utterances));
    assert_eq!(planned.padding.batches, planned.epoch_utterances as u64 / batch);
}

fn check_role(role: &RolePlan) {
    let sum: u64 = role.lines.iter().map(|line| line.bytes).sum();
    assert_eq!(sum, role.planned_bytes);
    assert!(role.planned_bytes <= role.limit_bytes);
    assert!(role.planned_bytes - role.driver_bytes <= role.arena_bytes);
    assert!(role.driver_bytes + role.arena_bytes <= role.limit_bytes);
    assert_eq!(role.arena_bytes % POOL_GRANULE, 0);
    assert!(role.planned_mb() <= role.limit_mb());
}

fn check_plan(plan: &Plan, hardware: &Hardware) {
    Role::BOTH.into_iter().for_each(|role| check_role(plan.role(role)));
    let free = |role: &RolePlan| match role.card {
        Some(card) => hardware.cards[card].reading.free_bytes,
        None => hardware.host.available_bytes - plan.read_ahead_bytes,
    };
    let cached_bytes = match &plan.cache.spec {
        CacheSpec::Memory { budget_bytes } => *budget_bytes,
        CacheSpec::None | CacheSpec::Disk { .. } => 0,
    };
    let on_host = plan.read_ahead_bytes + plan.feed.pinned_bytes() + cached_bytes;
    assert!(plan.mode == Mode::Cpu || on_host <= hardware.host.available_bytes);
    match plan.mode {
        Mode::Multi => {
            assert!(plan.data.limit_bytes <= free(&plan.data) && plan.model.limit_bytes <= free(&plan.model))
        }
        _ => assert!(plan.data.limit_bytes + plan.model.limit_bytes <= free(&plan.model)),
    }
    assert_eq!(plan.batch_size % plan.grad_accum, 0);
    assert!(plan.advice.len() <= 3);
    assert!(plan_json(plan, hardware)["roles"]["data"]["limit_mb"].is_u64());
}

fn check_refusal(refusal: &Refusal, settings: &Settings, hardware: &Hardware, corpus: Option<&CorpusFacts>) {
    assert!(refusal.message.starts_with("❌ "), "{refusal}");
    for suggestion in &refusal.suggestions {
        assert!(!suggestion.args().is_empty(), "{refusal}");
        if let Err(again) = Plan::solve(&suggestion.apply(settings), hardware, &Formula, corpus) {
            panic!("{settings}\n{refusal}\n{:?}\n{again}", suggestion.args());
        }
    }
    assert_eq!(refusal_json(refusal)["code"], 2);
    if refusal.kind == Reason::TooSmall && Plan::solve(&smallest(settings, corpus), hardware, &Formula, corpus).is_ok()
    {
        let keeps_limits = |s: &Suggestion| s.args().iter().all(|arg| !arg.ends_with("-gpu-memory"));
        assert!(refusal.suggestions.iter().any(keeps_limits), "{settings}\n{refusal}");
    }
}

/// The smallest run on these devices with these limits.
fn smallest(settings: &Settings, corpus: Option<&CorpusFacts>) -> Settings {
    let shortest = corpus.and_then(|corpus| corpus.rows().first()).map(|(_, extent)| *extent);
    let (frames, tokens) = shortest.map_or((8, 1), |extent| (extent.frames.max(8), extent.tokens));
    let changes = [
        ("batch-size", "1"),
        ("grad-accum", "1"),
        ("max-mel-frames", &frames.to_string()),
        ("max-text-length", &tokens.to_string()),
        ("buffer-size", "1"),
        ("prefetch-buffer-size", "1"),
        ("model-size", "nano"),
        ("optimization-level", "basic"),
        ("no-mixed-precision", ""),
        ("transfer", "auto"),
        ("read-ahead-mb", "0"),
    ];
    settings.with(&changes).expect("valid values")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn a_plan_fits_and_a_refusal_helps((settings, hardware, corpus) in (settings(), hardware(), corpus())) {
        match Plan::solve(&settings, &hardware, &Formula, corpus.as_ref()) {
            Ok(plan) => {
                check_plan(&plan, &hardware);
                check_shapes(&plan, corpus.as_ref());
            }
            Err(refusal) => check_refusal(&refusal, &settings, &hardware, corpus.as_ref()),
        }
    }

    #[test]
    fn any_text_is_a_config_or_an_error(text in ".{0,200}") {
        let _ = tandem_plan::config::parse(&text, "any", &mut Settings::new());
    }

    #[test]
    fn any_value_is_accepted_or_refused(at in 0..tandem_plan::setting::SETTINGS.len(), text in ".{0,20}") {
        let flag = tandem_plan::setting::SETTINGS[at].flag;
        let _ = Settings::new().with(&[(flag, text)]);
    }
}

/// A limit on the length of recordings, which usually saves memory, would leave out the only one.
#[test]
fn a_small_card_and_one_long_recording_get_a_suggestion() {
    let driver = DriverCost { model_modules_bytes: 90 * MIB, ..DriverCost::table() };
    let host = HostFacts { available_bytes: 512 * MIB, limited_by: None, cores: 4 };
    let mut hardware = Hardware::simulated(1, 1024 * MIB, &driver, host);
    hardware.cards[0].card.capability = (7, 5);
    let corpus = CorpusFacts::new("any", vec![(SampleIndex(0), Extent { frames: 1785, tokens: 1 })]);
    let refusal = Plan::solve(&Settings::new(), &hardware, &Formula, Some(&corpus)).expect_err("it does not fit");
    check_refusal(&refusal, &Settings::new(), &hardware, Some(&corpus));
    assert!(!refusal.suggestions.is_empty(), "{refusal}");
}
