//! Layers of one matrix: linear, convolution, embedding; and the norm that goes before them.

use tandem_engine::{ConvWindow, EngineError, Graph, Init, ParameterId, ParameterList, Rows, Value};

/// `x·Wᵀ + b`.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    weight: ParameterId,
    bias: ParameterId,
}

impl Linear {
    /// Declares one from `inputs` to `outputs` channels.
    pub fn new(list: &mut ParameterList, name: &str, inputs: u32, outputs: u32) -> Result<Linear, EngineError> {
        let bound = 1.0 / f64::from(inputs).sqrt();
        Linear::with_init(list, name, inputs, outputs, Init::Uniform(bound))
    }

    /// Declares one whose output is zero at first, so that what it is added to is unchanged.
    pub fn silent(list: &mut ParameterList, name: &str, inputs: u32, outputs: u32) -> Result<Linear, EngineError> {
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

    /// Writes it.
    pub fn write(&self, g: &mut Graph, x: Value) -> Result<Value, EngineError> {
        let (weight, bias) = (g.parameter(self.weight), g.parameter(self.bias));
        g.linear(x, weight, Some(bias))
    }
}

/// A convolution over the frames of each row; as many frames come out as go in.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    weight: ParameterId,
    bias: ParameterId,
    window: ConvWindow,
}

impl Conv {
    /// Declares one over `kernel` frames.
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

    /// Writes it.
    pub fn write(&self, g: &mut Graph, x: Value, rows: &Rows, lengths: Value) -> Result<Value, EngineError> {
        let (weight, bias) = (g.parameter(self.weight), g.parameter(self.bias));
        g.conv1d(x, weight, bias, self.window, rows, lengths)
    }
}

/// A vector for each symbol.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    table: ParameterId,
}

impl Embedding {
    /// Declares one.
    pub fn new(list: &mut ParameterList, name: &str, symbols: u32, width: u32) -> Result<Embedding, EngineError> {
        let init = Init::Normal(1.0 / f64::from(width).sqrt());
        list.scope(name, |list| Ok(Embedding { table: list.weight("weight", &[symbols, width], init)? }))
    }

    /// Writes it.
    pub fn write(&self, g: &mut Graph, ids: Value) -> Result<Value, EngineError> {
        let table = g.parameter(self.table);
        g.embedding(table, ids)
    }
}

/// Every frame to mean 0 and variance 1, then a gain and a bias per channel.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    gain: ParameterId,
    bias: ParameterId,
}

impl LayerNorm {
    /// Declares one.
    pub fn new(list: &mut ParameterList, name: &str, width: u32) -> Result<LayerNorm, EngineError> {
        list.scope(name, |list| {
            Ok(LayerNorm {
                gain: list.vector("weight", &[width], Init::Constant(1.0))?,
                bias: list.vector("bias", &[width], Init::Constant(0.0))?,
            })
        })
    }

    /// Writes it.
    pub fn write(&self, g: &mut Graph, x: Value) -> Result<Value, EngineError> {
        let (gain, bias) = (g.parameter(self.gain), g.parameter(self.bias));
        g.layer_norm(x, gain, bias)
    }
}
