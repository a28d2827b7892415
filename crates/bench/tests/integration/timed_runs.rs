//! A timed run is a whole run, and leaves nothing behind.

use tandem_bench::auto_mode::{TimedRuns, candidates};
use tandem_device::{Machine, SimSpec};
use tandem_events::Emitter;
use tandem_launch::demo;
use tandem_launch::inventory::Inventory;
use tandem_plan::Settings;

#[test]
fn nothing_of_a_timed_run_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let flags = [("mode", "auto"), ("model-size", "nano"), ("batch-size", "2"), ("max-mel-frames", "200")];
    let settings = Settings::new().with(&flags).unwrap();
    let (facts, corpora) = demo::corpora(folder.path(), &settings).unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let before = files();
    // One machine for each of them, kept to look at.
    let machines = std::cell::RefCell::new(Vec::new());
    let take_inventory = || {
        let machine = Machine::simulated(SimSpec::new(2, 24 << 30));
        machines.borrow_mut().push(machine.clone());
        Inventory::of(machine)
    };
    let field = candidates(&settings, &take_inventory().unwrap().hardware).unwrap();
    let mut timed_runs = TimedRuns::new(&take_inventory, &facts, &corpora, folder.path(), Emitter::none());
    for candidate in &field.others {
        let seen = timed_runs.run(candidate).unwrap();
        assert!(seen.rate.steps_per_s > 0.0 && seen.used_bytes.iter().all(|bytes| *bytes > 0), "{seen:?}");
    }
    // One for the candidates, one for each of them, and one for the link between the cards of several ranks.
    assert_eq!((field.others.len(), machines.borrow().len()), (4, 6));
    for machine in machines.borrow().iter() {
        assert_eq!(machine.sim().unwrap().alive(), Default::default());
        let [one, two] = [0, 1].map(|card| machine.read(card).unwrap().free_bytes);
        assert_eq!((one, two), (24 << 30, 24 << 30));
    }
    assert_eq!(files(), before);
}
