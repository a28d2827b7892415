//! The same promises on NVIDIA cards, over every route: on two cards if there are two (`TANDEM_TWO_CONTEXTS=1` shows one as
//! two), else with both roles on one.

use std::io::Write as _;

use tandem_audio::mel::reference;
use tandem_audio::{Clip, Resampler};
use tandem_device::{DType, Machine, Route};
use tandem_feed::{BatchSchema, CacheSpec, Dim, FieldSpec, SPEECH};

use super::support::{Bytes, Corpus, PATIENCE, Serving, clip};

const ROUTES: [Route; 5] = [Route::Handover, Route::Peer, Route::PeerCopy, Route::Staged, Route::Bounce];
const COUNT: usize = 14;

fn serving(route: Route) -> Serving {
    let machine = Machine::cuda().unwrap().expect("an NVIDIA card");
    let model = if route == Route::Handover { 0 } else { (machine.cards().len() - 1).min(1) };
    Serving::on(machine, [0, model], route)
}

fn field<'a>(batch: &'a Bytes, name: &str) -> &'a [u8] {
    &batch.fields.iter().find(|(field, _, _)| field == name).unwrap().2
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn gpu_batches_are_the_same_on_every_route_and_with_any_number_of_workers() {
    let corpus = Corpus::new(31, 40);
    let expected = serving(Route::Handover).batches(&corpus.training_set, COUNT).unwrap();
    for route in ROUTES {
        for workers in [1, 2, 7] {
            let found = serving(route).workers(workers).batches(&corpus.training_set, COUNT).unwrap();
            assert!(found == expected, "{} with {workers} workers", route.name());
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn gpu_batches_are_those_of_the_cpu_within_the_bounds_of_the_features() {
    let corpus = Corpus::new(32, 30);
    let cpu = Serving::cpu().batches(&corpus.training_set, COUNT).unwrap();
    let gpu = serving(Route::Handover).batches(&corpus.training_set, COUNT).unwrap();
    for (cpu, gpu) in cpu.iter().zip(&gpu) {
        for exact in ["text", "text_lengths", "mel_lengths", "speaker"] {
            assert!(field(cpu, exact) == field(gpu, exact), "{exact}");
        }
        for close in ["mel", "reference"] {
            let floats = |batch| bytemuck::cast_slice::<u8, f32>(field(batch, close)).to_vec();
            for (a, b) in floats(cpu).into_iter().zip(floats(gpu)) {
                let bound = if a >= 1e-4_f32.ln() { 1e-3 } else { 1e-2 };
                assert!((a - b).abs() <= bound, "{close}: {a} {b}");
            }
        }
    }
    // Row 0 of the first batch also equals the reference implementation.
    let first = &gpu[0];
    let mut resampled = Clip::default();
    let recording = clip(32, u64::from(first.samples[0]));
    Resampler::new(22_050).clip_into(&recording, &mut resampled).unwrap();
    let expected = reference(&resampled, corpus.training_set.features()).unwrap();
    // Row 0 starts where the field starts.
    let found = bytemuck::cast_slice::<u8, f32>(field(first, "mel"));
    assert!(expected.len() > 1000);
    for (a, b) in expected.iter().zip(found) {
        let bound = if *a >= 1e-4_f64.ln() { 1e-3 } else { 1e-2 };
        assert!((a - f64::from(*b)).abs() <= bound, "{a} {b}");
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn gpu_batches_for_other_libraries_are_the_same_and_have_the_waveform_of_the_cpu() {
    const WAVEFORM: FieldSpec = FieldSpec { name: "waveform", dtype: DType::F32, dims: &[Dim::Samples] };
    let schema = BatchSchema { fields: [&SPEECH.fields[..], &[WAVEFORM]].concat().into(), ..SPEECH };
    let corpus = Corpus::new(35, 40);
    let expected = Serving { schema: schema.clone(), ..serving(Route::Handover) };
    let expected = expected.batches(&corpus.training_set, COUNT).unwrap();
    for route in ROUTES {
        let shared = Serving { shares: true, schema: schema.clone(), ..serving(route) };
        assert!(shared.batches(&corpus.training_set, COUNT).unwrap() == expected, "{}", route.name());
    }
    let cpu = Serving { schema, ..Serving::cpu() }.batches(&corpus.training_set, COUNT).unwrap();
    for (cpu, gpu) in cpu.iter().zip(&expected) {
        assert!(field(cpu, "waveform") == field(gpu, "waveform"));
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn gpu_removing_any_one_wait_gives_a_wrong_batch() {
    let corpus = Corpus::new(33, 60);
    let count = 60;
    // After an epoch the recordings come from memory: the data side is then ahead of every delay.
    let delayed = |route| {
        let cache = CacheSpec::Memory { budget_bytes: 1 << 30 };
        Serving { delay_ns: 10_000_000, cache, ..serving(route) }.workers(6)
    };
    let mut noticed = 0;
    let ours = ROUTES.map(|route| (route, false));
    for (route, shares) in ours.into_iter().chain([(Route::Handover, true), (Route::Bounce, true)]) {
        let serving = || Serving { shares, ..delayed(route) };
        let clean = serving();
        let expected = clean.batches(&corpus.training_set, count).unwrap();
        for wait in clean.machine.faults().waits_seen() {
            if wait.starts_with("the ") {
                continue;
            }
            let faulty = serving();
            faulty.machine.faults().skip_wait(wait);
            let found = faulty.batches(&corpus.training_set, count);
            assert!(found.map_or(true, |found| found != expected), "{}: `{wait}` is not needed", route.name());
            noticed += 1;
        }
    }
    let _ = writeln!(std::io::stderr(), "{noticed} of {noticed} removed waits noticed");
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn gpu_after_warm_up_neither_our_count_nor_the_drivers_changes() {
    let corpus = Corpus::new(34, 60);
    for route in ROUTES {
        let serving = serving(route);
        let counted = serving.serve(&corpus.training_set, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            feed.wait_warm(PATIENCE)?;
            for _ in 0..50 {
                feed.lease(&stream)?;
            }
            stream.drain()?;
            let count_on = |card: usize| {
                let counters = serving.machine.counters(card);
                let free = serving.machine.read(card).map(|reading| reading.free_bytes);
                free.map(|free| (counters.allocations, counters.pinned_allocations, free))
            };
            let count = || serving.cards.iter().map(|card| count_on(*card)).collect::<Result<Vec<_>, _>>();
            let before = count()?;
            for _ in 0..1000 {
                feed.lease(&stream)?;
            }
            stream.drain()?;
            Ok((before, count()?))
        });
        let (before, after) = counted.unwrap();
        assert_eq!(before, after, "{}", route.name());
    }
}
