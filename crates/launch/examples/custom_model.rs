//! A model of one's own: planned for, trained inside hard limits, kept, and gone on with.
//! `cargo run -p tandem-launch --example custom_model [-- DIR [card]]`; in `DIR` the run is kept, and goes on the next time.
//!
//! Runs on two simulated cards, whose maths runs on the CPU, on a minute of synthetic speech; with `card` in two partitions
//! of a real one.
#![allow(clippy::print_stdout, reason = "an example tells what it found")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_device::{Machine, SimSpec};
use tandem_engine::{EngineError, Graph, ParameterList, Parameters, Value};
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_launch::launch::Corpora;
use tandem_launch::{EachStep, Trainer, demo};
use tandem_model::layers::{Conv, Linear};
use tandem_model::{BatchShape, Losses, Model, inputs};
use tandem_pipeline::StopFlag;
use tandem_plan::{CustomModel, Settings};

/// Bands of a spectrum, as the feed makes them.
const MELS: u32 = 80;

/// An autoencoder of spectra: what a frame and its neighbours are, in a few numbers, and the frame from those.
pub struct Narrow {
    parameters: Arc<Parameters>,
    look: Conv,
    down: Linear,
    up: Linear,
    again: Linear,
}

impl Narrow {
    /// A model of so many channels inside, `waist` of them at its narrowest.
    pub fn new(width: u32, waist: u32) -> Result<Narrow, EngineError> {
        let mut list = ParameterList::new();
        let look = Conv::new(&mut list, "look", MELS, width, 3)?;
        let down = Linear::new(&mut list, "down", width, waist)?;
        let up = Linear::new(&mut list, "up", waist, width)?;
        let again = Linear::new(&mut list, "again", width, MELS)?;
        Ok(Narrow { parameters: Arc::new(list.finish()), look, down, up, again })
    }

    /// The spectrum that was given, the one made of it, and how long each utterance is.
    fn write(&self, g: &mut Graph, shape: &BatchShape) -> Result<[Value; 3], EngineError> {
        let (mel, lengths) = inputs::mel(g, shape, MELS)?;
        let seen = self.look.forward(g, mel, &shape.mel, lengths)?;
        let seen = g.gelu(seen)?;
        let few = self.down.forward(g, seen)?;
        let wide = self.up.forward(g, few)?;
        let wide = g.gelu(wide)?;
        Ok([mel, self.again.forward(g, wide)?, lengths])
    }
}

impl Model for Narrow {
    fn name(&self) -> &str {
        "narrow"
    }

    fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    fn training_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
        let [mel, made, lengths] = self.write(g, shape)?;
        // One over all numbers of the optimizer step: the loss is a mean, however the step is cut into batches.
        let per_element = inputs::per_element(g)?;
        Ok(Losses::new("squares", g.l2_loss(made, mel, &shape.mel, lengths, per_element)?))
    }

    fn validation_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
        let [mel, made, lengths] = self.write(g, shape)?;
        let per_element = inputs::per_element(g)?;
        let squares = g.l2_loss(made, mel, &shape.mel, lengths, per_element)?;
        let distance = g.l1_loss(made, mel, &shape.mel, lengths, per_element)?;
        Ok(Losses::new("squares", squares).and("distance", distance))
    }
}

/// Where the example trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a pair of cards that are not there.
    Pair,
    /// In two partitions of a card that is.
    Card,
}

/// Synthetic speech in `folder`, and a plan for `model` with 1 GB for each role.
pub fn resolve(folder: &Path, model: &Arc<dyn Model>, place: Place) -> Result<(Resolved, Corpora), Box<dyn Error>> {
    let settings = Settings::new().with(&[
        ("enable-memory-isolation", "true"),
        ("data-gpu-memory", "1024"),
        ("model-gpu-memory", "1024"),
        ("batch-size", "4"),
        ("buffer-size", "6"),
        ("max-steps", "30"),
        ("lr", "0.005"),
    ])?;
    let (settings, inventory) = match place {
        Place::Pair => {
            let machine = Machine::simulated(SimSpec::new(2, 24 << 30));
            (settings.with(&[("data-gpu", "0"), ("model-gpu", "1")])?, Inventory::of(machine)?)
        }
        Place::Card => (settings.with(&[("share-gpu", "true")])?, Inventory::survey(None)?),
    };
    let (facts, corpora) = demo::corpora(folder, &settings)?;
    let plan = inventory.resolve_for(&CustomModel::new(Arc::clone(model)), &settings, Some(&facts));
    Ok((plan.map_err(|refusal| refusal.message)?, corpora))
}

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let folder = std::env::args().nth(1).map_or_else(|| scratch.path().join("run"), PathBuf::from);
    let model: Arc<dyn Model> = Arc::new(Narrow::new(32, 8)?);
    let place = if std::env::args().nth(2).as_deref() == Some("card") { Place::Card } else { Place::Pair };
    let (plan, corpora) = resolve(&scratch.path().join("speech"), &model, place)?;

    // Both roles' memory is taken here, all of it: nothing more is asked of the cards later.
    let mut print = |line: &str| println!("{line}");
    let mut trainer = Trainer::builder(&plan).model(model).folder(folder).on_message(&mut print).build(&corpora)?;
    println!("{} parameters, {} steps done", trainer.num_parameters(), trainer.step());
    let mut tell = EachStep(|report: &tandem_train::StepReport| {
        if report.step == 1 || report.step.is_multiple_of(5) {
            println!("step {:>2}: squares {:.3}", report.step, report.loss());
        }
    });
    let outcome = trainer.run(&StopFlag::new(), &mut tell)?;
    if let Some(judged) = &outcome.validation {
        let metrics: Vec<String> = judged.metrics.iter().map(|(name, x)| format!("{name} {x:.3}")).collect();
        println!("validation: {}", metrics.join(", "));
    }
    for role in trainer.memory_stats() {
        println!("{role}, peak {} bytes on {} ({})", role.peak_bytes, role.name, role.uuid);
        role.owners.iter().for_each(|(owner, bytes)| println!("  {bytes:>11} {owner}"));
    }
    Ok(trainer.stop()?)
}
