//! A plain causal transformer over tokens: benchmarks measure the engine with it, and tests compare it with PyTorch.
//!
//! It is no part of the speech model. Its blocks are those of GPT-2 style benchmarks (pre-norm, one matrix for queries, keys
//! and values, exact GELU, feed-forward expansion of 4), so that any framework can run the same model.

use std::sync::Arc;

use tandem_device::DType;
use tandem_engine::{
    EngineError, Graph, Init, NamedLayout, ParameterId, ParameterList, Parameters, Recomputed, Rows, TensorType, Value,
    WriteMode,
};

use crate::layers::Linear;

/// Expansion of the feed-forward part.
const EXPANSION: u32 = 4;

/// The dimensions of a transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerSizes {
    /// Channels.
    pub width: u32,
    /// Blocks.
    pub layers: u32,
    /// Attention heads per block; they divide the width.
    pub heads: u32,
    /// Vocabulary size.
    pub vocabulary: u32,
}

/// The transformer: its layers and parameters.
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
    /// Declares the parameters. Panics if the heads do not divide the width.
    ///
    /// The order and the names of the parameters are those of `tools/reference/engine`.
    pub fn new(sizes: TransformerSizes) -> Result<Transformer, EngineError> {
        let TransformerSizes { width, layers, heads, vocabulary } = sizes;
        assert!(heads > 0 && width.is_multiple_of(heads), "{heads} heads of {width} channels");
        let mut list = ParameterList::new();
        let init = Init::Normal(1.0 / f64::from(width).sqrt());
        let embedding = list.weight("embedding", &[vocabulary, width], init)?;
        let layers = (0..layers).map(|layer| Layer::new(&mut list, &format!("layer{layer}"), width));
        let layers = layers.collect::<Result<_, _>>()?;
        let norm = Norm::new(&mut list, "norm", width)?;
        let head = Linear::new(&mut list, "head", width, vocabulary)?;
        Ok(Transformer { sizes, parameters: Arc::new(list.finish()), embedding, layers, norm, head })
    }

    /// Its trainable parameters.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    /// The layout of a batch: `tokens` and `targets` of every position, and the `lengths` of the rows.
    pub fn layout(&self, batch: u32, length: u32) -> Result<NamedLayout, EngineError> {
        let mut layout = NamedLayout::default();
        for name in ["tokens", "targets"] {
            layout.place(name, TensorType::new(DType::I32, &[batch * length]))?;
        }
        layout.place("lengths", TensorType::new(DType::I32, &[batch]))?;
        Ok(layout)
    }

    /// Forward and backward pass of `batch` rows of `length` tokens. Result: `loss`, the mean cross entropy over all positions,
    /// so rows must be full.
    pub fn accumulate(
        &self,
        precision: DType,
        (batch, length): (u32, u32),
        mode: WriteMode,
    ) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let rows = Rows::even(batch, length);
        let ids = TensorType::new(DType::I32, &[batch * length]);
        let (tokens, targets) = (g.input("tokens", ids)?, g.input("targets", ids)?);
        let lengths = g.input("lengths", TensorType::new(DType::I32, &[batch]))?;
        let table = g.parameter(self.embedding);
        let mut x = g.embedding(table, tokens)?;
        for layer in &self.layers {
            x = layer.forward(&mut g, x, self.sizes.heads, &rows, lengths)?;
        }
        let x = self.norm.forward(&mut g, x)?;
        let logits = self.head.forward(&mut g, x)?;
        let weight = g.number(1.0 / f64::from(batch * length));
        let loss = g.cross_entropy(logits, targets, &rows, lengths, weight)?;
        g.result("loss", loss)?;
        g.write_gradients(loss, mode, &Recomputed::new())?;
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

    fn forward(&self, g: &mut Graph, x: Value, heads: u32, rows: &Rows, lengths: Value) -> Result<Value, EngineError> {
        let x = g.scope("attention", |g| {
            let h = self.norm1.forward(g, x)?;
            let h = self.qkv.forward(g, h)?;
            let h = g.attention(h, heads, true, rows, lengths)?;
            let h = self.proj.forward(g, h)?;
            g.add(x, h)
        })?;
        g.scope("feed_forward", |g| {
            let h = self.norm2.forward(g, x)?;
            let h = self.up.forward(g, h)?;
            let h = g.gelu(h)?;
            let h = self.down.forward(g, h)?;
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

    fn forward(&self, g: &mut Graph, x: Value) -> Result<Value, EngineError> {
        let (gain, bias) = (g.parameter(self.gain), g.parameter(self.bias));
        g.layer_norm(x, gain, bias)
    }
}
