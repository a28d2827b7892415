//! A stand-in for the model: the buffers a model of that size has, and matrix products through them.
//!
//! It holds exactly what the plan charges for, in the model role's arena, and reads its input from real slots. The
//! real models replace it; until then it keeps `validate` honest about memory and order.

use tandem_device::{Arena, Arg, Block, Device, DeviceError, Grid, Loaded, Stream, View};
use tandem_feed::Bucket;
use tandem_plan::{Precision, StandIn as Shape};

use crate::kernels::{PRODUCT_BF16, PRODUCT_F32, ROWS_BF16, ROWS_F32};

/// Rows a rehearsed product really computes: enough to use every tile, few enough for a CPU.
const ROWS_COMPUTED: u64 = 32;
/// Layers a step goes through; successive steps take successive ones, so all are used in turn.
const LAYERS_PER_STEP: u64 = 4;

/// The names the plan gives the buffers that the products run through.
const PARAMETERS: &str = "parameters";
const COMPUTE_PARAMETERS: &str = "compute parameters";
const INPUT: &str = "input block";
const ACTIVATIONS: &str = "activations";

/// The stand-in in its arena.
pub struct StandIn {
    shape: Shape,
    rows: u64,
    blocks: Vec<Block>,
    read_rows: Loaded,
    product: Loaded,
}

impl StandIn {
    /// Takes every buffer the plan charges for a step of `bucket`, and gives the matrices something to multiply with.
    pub fn create(
        device: &Device,
        arena: &Arena,
        shape: Shape,
        bucket: &Bucket,
        stream: &Stream,
    ) -> Result<StandIn, DeviceError> {
        let take = |(name, bytes): (&'static str, u64)| arena.take(name, bytes);
        let blocks = shape.buffers(bucket).into_iter().map(take).collect::<Result<_, _>>()?;
        let (rows, product) = match shape.choice.precision {
            Precision::Mixed => (&ROWS_BF16, &PRODUCT_BF16),
            Precision::Full => (&ROWS_F32, &PRODUCT_F32),
        };
        let (read_rows, product) = (device.load(rows)?, device.load(product)?);
        let model = StandIn { shape, rows: bucket.frames(), blocks, read_rows, product };
        // Every byte 0x3C is 0.0115 in bf16 and in f32: sums stay small through the layers of a step.
        stream.fill(model.weights().view(), 0x3C)?;
        Ok(model)
    }

    /// One step on `stream`: the batch goes to its fixed place, then through some of the layers.
    pub fn step(&self, stream: &Stream, step: u64, batch: View<'_>) -> Result<(), DeviceError> {
        let input = self.block(INPUT);
        stream.copy(batch, input.part(0, batch.bytes()))?;
        let (rows, width) = (self.rows.min(ROWS_COMPUTED), self.shape.width as u32);
        let count = (rows * u64::from(width)).min(batch.bytes() / 4);
        let first = step * LAYERS_PER_STEP % self.shape.layers;
        let words = Arg::read::<u32>(input.part(0, count * 4));
        let args = [words, self.writes(self.activation(first)), Arg::U64(count)];
        stream.launch(&self.read_rows, Grid::cover(count, 256), &args)?;
        let blocks = [width.div_ceil(16), (rows as u32).div_ceil(16), 1];
        let grid = Grid { blocks, threads: 256, shared_bytes: 0 };
        for layer in first..(first + LAYERS_PER_STEP).min(self.shape.layers) {
            let matrix = self.weights().part(layer * self.matrix_bytes(), self.matrix_bytes());
            let (from, to) = (self.reads(self.activation(layer)), self.writes(self.activation(layer + 1)));
            let args = [from, self.reads(matrix), to, Arg::U32(rows as u32), Arg::U32(width)];
            stream.launch(&self.product, grid, &args)?;
        }
        Ok(())
    }

    /// Every buffer it holds.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn block(&self, name: &str) -> &Block {
        match self.blocks.iter().find(|block| block.owner() == name) {
            Some(block) => block,
            None => unreachable!("a stand-in without {name}"),
        }
    }

    fn weights(&self) -> &Block {
        self.block(match self.shape.choice.precision {
            Precision::Mixed => COMPUTE_PARAMETERS,
            Precision::Full => PARAMETERS,
        })
    }

    fn matrix_bytes(&self) -> u64 {
        self.shape.width * self.shape.width * self.shape.compute_dtype().bytes()
    }

    /// The rows that are computed of the input of layer `layer`.
    fn activation(&self, layer: u64) -> View<'_> {
        let row_bytes = self.shape.width * self.shape.compute_dtype().bytes();
        self.block(ACTIVATIONS).part(layer * self.rows * row_bytes, self.rows.min(ROWS_COMPUTED) * row_bytes)
    }

    fn reads<'a>(&self, view: View<'a>) -> Arg<'a> {
        Arg::In(view, self.shape.compute_dtype())
    }

    fn writes<'a>(&self, view: View<'a>) -> Arg<'a> {
        Arg::Out(view, self.shape.compute_dtype())
    }
}
