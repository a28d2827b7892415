//! A plain causal transformer over symbols: what the engine is measured with and held against PyTorch.
//!
//! No part of the speech model. Its blocks are those of common benchmarks (pre-norm, queries, keys and values in one matrix,
//! the exact GELU, four times as wide inside), so that other people's programs can run the same one.

use std::sync::Arc;

use tandem_device::DType;
use tandem_engine::{
    Earlier, EngineError, Graph, Init, NamedLayout, ParameterId, ParameterList, Parameters, Recomputed, Rows,
    TensorType, Value,
};

use crate::layers::Linear;

/// How much wider the feed-forward part is inside.
const EXPANSION: u32 = 4;

/// How large a transformer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerSizes {
    /// Channels.
    pub width: u32,
    /// Blocks.
    pub layers: u32,
    /// Attention heads of each; they divide the width.
    pub heads: u32,
    /// Different symbols.
    pub vocabulary: u32,
}

/// The transformer: its parts and what they learn.
#[derive(Clone, Debug)]
pub struct Transformer {
    sizes: TransformerSizes,
    parameters: Arc<Parameters>,
    embedding: ParameterId,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
}

#[derive(Clone, Debug)]
struct Layer {
    norm1: Norm,
    qkv: Linear,
    proj: Linear,
    norm2: Norm,
    up: Linear,
    down: Linear,
}

#[derive(Clone, Copy, Debug)]
struct Norm {
    gain: ParameterId,
    bias: ParameterId,
}

impl Transformer {
    /// Declares one. Panics on heads that do not divide the width.
    ///
    /// The order and the names of its parameters are those of `tools/reference/engine`.
    pub fn new(sizes: TransformerSizes) -> Result<Transformer, EngineError> {
        let TransformerSizes { width, layers, heads, vocabulary } = sizes;
        assert!(heads > 0 && width.is_multiple_of(heads), "{heads} heads of {width} channels");
        let mut list = ParameterList::new();
        let start = Init::Normal(1.0 / f64::from(width).sqrt());
        let embedding = list.weight("embedding", &[vocabulary, width], start)?;
        let layers = (0..layers).map(|layer| Layer::new(&mut list, &format!("layer{layer}"), width));
        let layers = layers.collect::<Result<_, _>>()?;
        let norm = Norm::new(&mut list, "norm", width)?;
        let head = Linear::new(&mut list, "head", width, vocabulary)?;
        Ok(Transformer { sizes, parameters: Arc::new(list.finish()), embedding, layers, norm, head })
    }

    /// What it learns.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    /// Where a batch lies: `tokens` and `targets` of every place, and the `lengths` of its rows.
    pub fn layout(&self, batch: u32, length: u32) -> Result<NamedLayout, EngineError> {
        let mut layout = NamedLayout::default();
        for name in ["tokens", "targets"] {
            layout.place(name, TensorType::new(DType::I32, &[batch * length]))?;
        }
        layout.place("lengths", TensorType::new(DType::I32, &[batch]))?;
        Ok(layout)
    }

    /// One batch of `batch` rows of `length` forward and backward, added to the gradients. Result: `loss`, the mean cross
    /// entropy over all places, so that rows are to be full.
    pub fn accumulate(
        &self,
        precision: DType,
        (batch, length): (u32, u32),
        earlier: Earlier,
    ) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let rows = Rows::even(batch, length);
        let ids = TensorType::new(DType::I32, &[batch * length]);
        let (tokens, targets) = (g.input("tokens", ids)?, g.input("targets", ids)?);
        let lengths = g.input("lengths", TensorType::new(DType::I32, &[batch]))?;
        let table = g.parameter(self.embedding);
        let mut x = g.embedding(table, tokens)?;
        for layer in &self.layers {
            x = layer.write(&mut g, x, self.sizes.heads, &rows, lengths)?;
        }
        let x = self.norm.write(&mut g, x)?;
        let logits = self.head.write(&mut g, x)?;
        let weight = g.number(1.0 / f64::from(batch * length));
        let loss = g.cross_entropy(logits, targets, &rows, lengths, weight)?;
        g.result("loss", loss)?;
        g.write_gradients(loss, earlier, &Recomputed::new())?;
        Ok(g)
    }
}

impl Layer {
    fn new(list: &mut ParameterList, name: &str, width: u32) -> Result<Layer, EngineError> {
        list.scope(name, |list| {
            Ok(Layer {
                norm1: Norm::new(list, "norm1", width)?,
                qkv: Linear::new(list, "qkv", width, 3 * width)?,
                proj: Linear::new(list, "proj", width, width)?,
                norm2: Norm::new(list, "norm2", width)?,
                up: Linear::new(list, "up", width, EXPANSION * width)?,
                down: Linear::new(list, "down", EXPANSION * width, width)?,
            })
        })
    }

    fn write(&self, g: &mut Graph, x: Value, heads: u32, rows: &Rows, lengths: Value) -> Result<Value, EngineError> {
        let x = g.scope("attention", |g| {
            let h = self.norm1.write(g, x)?;
            let h = self.qkv.write(g, h)?;
            let h = g.attention(h, heads, true, rows, lengths)?;
            let h = self.proj.write(g, h)?;
            g.add(x, h)
        })?;
        g.scope("feed_forward", |g| {
            let h = self.norm2.write(g, x)?;
            let h = self.up.write(g, h)?;
            let h = g.gelu(h)?;
            let h = self.down.write(g, h)?;
            g.add(x, h)
        })
    }
}

impl Norm {
    fn new(list: &mut ParameterList, name: &str, width: u32) -> Result<Norm, EngineError> {
        list.scope(name, |list| {
            let gain = list.vector("gain", &[width], Init::Constant(1.0))?;
            Ok(Norm { gain, bias: list.vector("bias", &[width], Init::Constant(0.0))? })
        })
    }

    fn write(&self, g: &mut Graph, x: Value) -> Result<Value, EngineError> {
        let (gain, bias) = (g.parameter(self.gain), g.parameter(self.bias));
        g.layer_norm(x, gain, bias)
    }
}
