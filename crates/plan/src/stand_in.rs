//! A model that stands in for the speech model until it is there: a chain of square matrix products with the
//! parameter counts of the presets. Its memory is real: what it says here is what a trial run allocates.

use tandem_device::DType;
use tandem_device::bytes::{BLOCK_ALIGN, round_up};
use tandem_feed::{Bucket, SPEECH};

use crate::placement::Precision;
use crate::workload::{Line, ModelChoice, ModelSize, Program, Workload, Workloads};

/// A chain of `layers` products with `width` × `width` weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandIn {
    /// Which preset it stands for, and how it computes.
    pub choice: ModelChoice,
    /// Columns of every activation.
    pub width: u64,
    /// Products in the chain.
    pub layers: u64,
}

impl StandIn {
    /// The chain for a preset.
    pub fn new(choice: ModelChoice) -> StandIn {
        let (width, parameters) = match choice.size {
            ModelSize::Nano => (192, 2_000_000),
            ModelSize::Tiny => (256, 12_000_000),
            ModelSize::Small => (384, 32_000_000),
            ModelSize::Normal => (512, 93_000_000),
            ModelSize::Big => (1024, 480_000_000),
        };
        let of_layer: u64 = width * width;
        StandIn { choice, width, layers: (parameters + of_layer / 2) / of_layer }
    }

    /// Weights of the whole chain.
    pub fn parameters(&self) -> u64 {
        self.layers * self.width * self.width
    }

    /// What activations are stored as.
    pub fn compute_dtype(&self) -> DType {
        match self.choice.precision {
            Precision::Full => DType::F32,
            Precision::Mixed => DType::BF16,
        }
    }

    /// Every buffer a step of `bucket` needs, lasting ones first. Together they are what the plan charges for
    /// that bucket, to the byte.
    pub fn buffers(&self, bucket: &Bucket) -> Vec<(&'static str, u64)> {
        let mut buffers = self.lasting_buffers();
        buffers.extend(self.passing_buffers(Program::Accumulate, bucket));
        buffers
    }

    fn lasting_buffers(&self) -> Vec<(&'static str, u64)> {
        let f32_bytes = self.parameters() * DType::F32.bytes();
        let mut buffers = vec![whole("parameters", f32_bytes)];
        if self.choice.precision == Precision::Mixed {
            buffers.push(whole("compute parameters", self.parameters() * self.compute_dtype().bytes()));
        }
        buffers.push(whole("gradients", f32_bytes));
        buffers.push(whole("optimizer first moment", f32_bytes));
        buffers.push(whole("optimizer second moment", f32_bytes));
        if self.choice.ema {
            buffers.push(whole("averaged parameters", f32_bytes));
        }
        buffers
    }

    /// The buffers that live only while `program` runs on `bucket`.
    fn passing_buffers(&self, program: Program, bucket: &Bucket) -> Vec<(&'static str, u64)> {
        let kept = match program {
            // The backward pass reads the input of every layer.
            Program::Accumulate => self.layers + 1,
            Program::Update => return Vec::new(),
            // One is read while the other is written.
            Program::Validate | Program::Sample => 2,
        };
        let bytes = bucket.frames() * self.width * self.compute_dtype().bytes();
        vec![whole("input block", SPEECH.layout(bucket).bytes), whole("activations", kept * bytes)]
    }
}

impl Workload for StandIn {
    fn name(&self) -> String {
        format!("stand-in for {}: {} products of width {}", self.choice.size.name(), self.layers, self.width)
    }

    fn lasting(&self) -> Vec<Line> {
        self.lasting_buffers().into_iter().map(|(name, bytes)| Line::new(name, bytes)).collect()
    }

    fn results(&self) -> u64 {
        RESULT_SLOTS * whole("result", RESULT_BYTES).1
    }

    fn bytes(&self, program: Program, bucket: &Bucket) -> u64 {
        self.passing_buffers(program, bucket).iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Steps of a stand-in whose results the host has not read yet: it reads behind the device, and never waits for the newest.
pub const RESULT_SLOTS: u64 = 8;
/// What such a step reports back.
pub const RESULT_BYTES: u64 = 16;

/// Arenas hand out whole blocks.
fn whole(name: &'static str, bytes: u64) -> (&'static str, u64) {
    (name, round_up(bytes, BLOCK_ALIGN))
}

/// Builds a [`StandIn`] for every choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandIns;

impl Workloads for StandIns {
    fn build(&self, choice: ModelChoice) -> Box<dyn Workload> {
        Box::new(StandIn::new(choice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand_in(size: ModelSize, precision: Precision, ema: bool) -> StandIn {
        StandIn::new(ModelChoice { size, precision, ema })
    }

    #[test]
    fn presets_have_about_their_parameters() {
        let expected = [2e6, 12e6, 32e6, 93e6, 480e6];
        for (size, expected) in ModelSize::ALL.into_iter().zip(expected) {
            let found = stand_in(size, Precision::Full, false).parameters() as f64;
            assert!((found / expected - 1.0).abs() < 0.01, "{size:?} {found}");
        }
    }

    #[test]
    fn buffers_are_whole_blocks_and_add_up_to_what_is_charged() {
        let bucket = Bucket::even(376, 75, 3);
        for precision in [Precision::Full, Precision::Mixed] {
            let model = stand_in(ModelSize::Nano, precision, true);
            let buffers = model.buffers(&bucket);
            let charged =
                model.lasting().iter().map(|l| l.bytes).sum::<u64>() + model.bytes(Program::Accumulate, &bucket);
            assert_eq!(buffers.iter().map(|(_, bytes)| bytes).sum::<u64>(), charged);
            assert!(buffers.iter().all(|(_, bytes)| bytes % BLOCK_ALIGN == 0));
        }
    }

    #[test]
    fn what_each_choice_costs() {
        let bucket = Bucket::even(8, 1, 1);
        let lines = |precision, ema| stand_in(ModelSize::Nano, precision, ema).lasting().len();
        assert_eq!(lines(Precision::Full, false), 4);
        assert_eq!(lines(Precision::Mixed, true), 6);
        let model = stand_in(ModelSize::Nano, Precision::Mixed, true);
        let (input, one) = (SPEECH.layout(&bucket).bytes, 8 * model.width * 2);
        assert_eq!(model.bytes(Program::Accumulate, &bucket), input + (model.layers + 1) * one);
        assert_eq!(model.bytes(Program::Validate, &bucket), input + 2 * one);
        assert_eq!(model.bytes(Program::Update, &bucket), 0);
    }
}
