//! Linear, convolution, embedding and layer norm.

use tandem_engine::{ConvWindow, EngineError, Graph, Init, ParameterId, ParameterList, Rows, Value};

/// `x·Wᵀ + b`.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    weight: ParameterId,
    bias: ParameterId,
}

impl Linear {
    /// Declares a layer from `inputs` to `outputs` channels.
    pub fn new(list: &mut ParameterList, name: &str, inputs: u32, outputs: u32) -> Result<Linear, EngineError> {
        let bound = 1.0 / f64::from(inputs).sqrt();
        Linear::with_init(list, name, inputs, outputs, Init::Uniform(bound))
    }

    /// Declares a zero-initialised layer: its output is zero at first, so a residual branch starts as the identity.
    pub fn zeros(list: &mut ParameterList, name: &str, inputs: u32, outputs: u32) -> Result<Linear, EngineError> {
        Linear::with_init(list, name, inputs, outputs, Init::Constant(0.0))
    }

    fn with_init(
        list: &mut ParameterList,
        name: &str,
        inputs: u32,
        outputs: u32,
        init: Init,
    ) -> Result<Linear, EngineError> {
        list.scope(name, |list| {
            Ok(Linear {
                weight: list.weight("weight", &[outputs, inputs], init)?,
                bias: list.vector("bias", &[outputs], Init::Constant(0.0))?,
            })
        })
    }

    /// Adds its forward pass to a graph.
    pub fn forward(&self, g: &mut Graph, x: Value) -> Result<Value, EngineError> {
        let (weight, bias) = (g.parameter(self.weight), g.parameter(self.bias));
        g.linear(x, weight, Some(bias))
    }
}

/// A 1-D convolution over the frames of each row, with `same` padding.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    weight: ParameterId,
    bias: ParameterId,
    window: ConvWindow,
}

impl Conv {
    /// Declares a convolution with a kernel of `kernel` frames.
    pub fn new(
        list: &mut ParameterList,
        name: &str,
        inputs: u32,
        outputs: u32,
        kernel: u32,
    ) -> Result<Conv, EngineError> {
        let bound = 1.0 / f64::from(inputs * kernel).sqrt();
        list.scope(name, |list| {
            Ok(Conv {
                weight: list.weight("weight", &[outputs, kernel * inputs], Init::Uniform(bound))?,
                bias: list.vector("bias", &[outputs], Init::Constant(0.0))?,
                window: ConvWindow::same(kernel),
            })
        })
    }

    /// Adds its forward pass to a graph.
    pub fn forward(&self, g: &mut Graph, x: Value, rows: &Rows, lengths: Value) -> Result<Value, EngineError> {
        let (weight, bias) = (g.parameter(self.weight), g.parameter(self.bias));
        g.conv1d(x, weight, bias, self.window, rows, lengths)
    }
}

/// A lookup table: one vector per token id.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    table: ParameterId,
}

impl Embedding {
    /// Declares a table for `symbols` token ids.
    pub fn new(list: &mut ParameterList, name: &str, symbols: u32, width: u32) -> Result<Embedding, EngineError> {
        let init = Init::Normal(1.0 / f64::from(width).sqrt());
        list.scope(name, |list| Ok(Embedding { table: list.weight("weight", &[symbols, width], init)? }))
    }

    /// Adds its forward pass to a graph.
    pub fn forward(&self, g: &mut Graph, ids: Value) -> Result<Value, EngineError> {
        let table = g.parameter(self.table);
        g.embedding(table, ids)
    }
}

/// Layer norm (Ba et al. 2016) over the channels of every frame, with gain and bias.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    gain: ParameterId,
    bias: ParameterId,
}

impl LayerNorm {
    /// Declares a norm over `width` channels.
    pub fn new(list: &mut ParameterList, name: &str, width: u32) -> Result<LayerNorm, EngineError> {
        list.scope(name, |list| {
            Ok(LayerNorm {
                gain: list.vector("weight", &[width], Init::Constant(1.0))?,
                bias: list.vector("bias", &[width], Init::Constant(0.0))?,
            })
        })
    }

    /// Adds its forward pass to a graph.
    pub fn forward(&self, g: &mut Graph, x: Value) -> Result<Value, EngineError> {
        let (gain, bias) = (g.parameter(self.gain), g.parameter(self.bias));
        g.layer_norm(x, gain, bias)
    }
}
