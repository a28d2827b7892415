//! Where the model of a run comes from: a preset of the speech model, or a custom model of a library user.

use std::sync::Arc;

use tandem_device::DeviceKind;
use tandem_engine::EngineError;
use tandem_model::{Model, Preset, Programs};

use crate::model_memory::{ModelCatalog, ModelChoice, ModelMemory};
use crate::plan::Plan;
use crate::speech::{self, PlannedModel, ProgramSizeCache};

/// Models that can be planned for and then built.
pub trait Models: ModelCatalog {
    /// The model of this preset. A custom model ignores the preset.
    fn model(&self, preset: Preset) -> Result<Arc<dyn Model>, EngineError>;

    /// All programs of a run of `plan`. They need exactly the planned memory.
    fn programs(&self, plan: &Plan) -> Result<Programs, EngineError> {
        let model = self.model(plan.model_size)?;
        speech::programs(plan, model.as_ref(), &speech::buckets(&plan.feed))
    }
}

/// A custom model. Its memory is planned like the speech model's, byte for byte from its own programs.
///
/// `--model-size` only affects the default learning rate.
///
/// ```
/// use std::sync::Arc;
/// use tandem_device::DriverCost;
/// use tandem_plan::{Hardware, HostFacts, CustomModel, Plan, Settings};
/// # use tandem_engine::{EngineError, Graph, ParameterList, Parameters};
/// # use tandem_model::{BatchShape, Losses, Model, inputs, layers::Linear};
/// # struct Mine { parameters: Arc<Parameters>, layer: Linear }
/// # impl Mine {
/// #     fn new() -> Result<Mine, EngineError> {
/// #         let mut list = ParameterList::new();
/// #         let layer = Linear::new(&mut list, "layer", 80, 80)?;
/// #         Ok(Mine { parameters: Arc::new(list.finish()), layer })
/// #     }
/// # }
/// # impl Model for Mine {
/// #     fn name(&self) -> &str { "mine" }
/// #     fn parameters(&self) -> &Arc<Parameters> { &self.parameters }
/// #     fn training_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
/// #         let (mel, lengths) = inputs::mel(g, shape, 80)?;
/// #         let output = self.layer.forward(g, mel)?;
/// #         let per_element = inputs::per_element(g)?;
/// #         Ok(Losses::new("loss", g.l2_loss(output, mel, &shape.mel, lengths, per_element)?))
/// #     }
/// #     fn validation_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> { self.training_losses(g, shape) }
/// # }
///
/// let models = CustomModel::new(Arc::new(Mine::new()?));
/// let host = HostFacts { available_bytes: 32 << 30, limited_by: None, cores: 8 };
/// let machine = Hardware::simulated(1, 24 << 30, &DriverCost::table(), host);
/// let plan = Plan::solve(&Settings::new(), &machine, &models, None)?;
/// assert_eq!(plan.model_title(), "mine");
/// let parameters = plan.model.lines.iter().find(|line| line.name == "parameters").ok_or("no such line")?;
/// assert_eq!(parameters.bytes, 4 * (80 * 80 + 128));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CustomModel {
    model: Arc<dyn Model>,
    sizes: ProgramSizeCache,
}

impl CustomModel {
    /// Plans for `model`.
    pub fn new(model: Arc<dyn Model>) -> CustomModel {
        CustomModel { model, sizes: ProgramSizeCache::default() }
    }
}

impl ModelCatalog for CustomModel {
    fn memory_of(&self, choice: ModelChoice, device: DeviceKind) -> Box<dyn ModelMemory> {
        Box::new(PlannedModel::new(Arc::clone(&self.model), choice, device, &self.sizes).custom())
    }
}

impl Models for CustomModel {
    fn model(&self, _: Preset) -> Result<Arc<dyn Model>, EngineError> {
        Ok(Arc::clone(&self.model))
    }
}

#[cfg(test)]
mod tests {
    use tandem_engine::{Graph, ParameterList, Parameters};
    use tandem_model::layers::Linear;
    use tandem_model::{BatchShape, Losses, inputs};

    use super::*;
    use crate::fixture::{gpus, settings};
    use crate::refusal::Reason;

    /// One linear layer over the mel bands; `bands` is the number of bands it expects.
    struct Layer {
        parameters: Arc<Parameters>,
        layer: Linear,
        bands: u32,
    }

    fn layer(width: u32, bands: u32) -> CustomModel {
        let mut list = ParameterList::new();
        let layer = Linear::new(&mut list, "layer", 80, width).unwrap();
        CustomModel::new(Arc::new(Layer { parameters: Arc::new(list.finish()), layer, bands }))
    }

    impl Model for Layer {
        fn name(&self) -> &str {
            "layer"
        }

        fn parameters(&self) -> &Arc<Parameters> {
            &self.parameters
        }

        fn training_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
            let (mel, lengths) = inputs::mel(g, shape, self.bands)?;
            let output = self.layer.forward(g, mel)?;
            let zero = g.scale(output, 0.0)?;
            let per_element = inputs::per_element(g)?;
            Ok(Losses::new("size", g.l2_loss(output, zero, &shape.mel, lengths, per_element)?))
        }

        fn validation_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
            self.training_losses(g, shape)
        }
    }

    fn plan(line: &str, models: &CustomModel) -> Result<Plan, crate::Refusal> {
        Plan::solve(&settings(line), &gpus(2, 24), models, None)
    }

    #[test]
    fn its_programs_need_exactly_the_planned_memory() {
        for line in ["", "--data-gpu 0 --model-gpu 1 --enable-memory-isolation", "--grad-accum 4"] {
            let models = layer(96, 80);
            let plan = plan(line, &models).unwrap();
            let programs = models.programs(&plan).unwrap();
            let slots: u64 = plan.feed.model_lines().iter().map(|(_, bytes)| bytes).sum();
            let planned = plan.model.planned_bytes - plan.model.driver_bytes - slots;
            assert_eq!(programs.set.bytes(DeviceKind::Simulated), planned, "{line}");
            assert_eq!((programs.losses, programs.metrics), (vec!["size".to_owned()], vec!["size".to_owned()]));
        }
    }

    #[test]
    fn a_plan_shows_its_name_and_ignores_the_preset() {
        let tiny = plan("", &layer(96, 80)).unwrap();
        assert_eq!((tiny.model_title(), tiny.custom_model.as_deref()), ("layer", Some("layer")));
        let big = plan("--model-size big", &layer(96, 80)).unwrap();
        assert_eq!(tiny.model.lines, big.model.lines);
        assert!(crate::show_short(&tiny).contains("layer model"));
    }

    #[test]
    fn a_model_that_cannot_be_built_is_refused_with_the_reason() {
        let refusal = plan("", &layer(96, 81)).unwrap_err();
        assert_eq!(refusal.kind, Reason::Model);
        assert!(refusal.message.contains("81"), "{}", refusal.message);
    }

    #[test]
    fn a_model_too_large_for_its_limit_is_refused_with_suggestions_that_fit() {
        let limits = "--data-gpu 0 --model-gpu 1 --enable-memory-isolation --model-gpu-memory";
        let refusal = plan(&format!("{limits} 800 --batch-size 64"), &layer(65_536, 80)).unwrap_err();
        assert_eq!(refusal.kind, Reason::TooSmall);
        let typed: Vec<String> = refusal.suggestions.iter().map(|one| one.args().join(" ")).collect();
        assert!(!typed.is_empty() && typed.iter().all(|line| !line.contains("--model-size")), "{typed:?}");
    }
}
