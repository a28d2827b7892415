//! A program: a graph compiled to launches with fixed addresses, ready to be replayed.

mod compile;
mod side_stream;

use std::sync::Arc;

use tandem_device::bytes::{BLOCK_ALIGN, round_up};

use crate::error::EngineError;
use crate::graph::Graph;
use crate::lower::{Launch, Region};
use crate::memory_plan::MemoryPlan;
use crate::tensor::TensorType;

use compile::GraphCompiler;
pub(crate) use side_stream::{SIDE_STREAM_OPS_IN_FLIGHT, SideStreamOp};

/// A named tensor at a fixed offset of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Its first byte in the region.
    pub offset: u64,
}

/// Named tensors back to back, each at a multiple of the block size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedLayout {
    /// The tensors.
    pub fields: Vec<Named>,
    /// Their total size.
    pub bytes: u64,
}

impl NamedLayout {
    /// Appends a tensor, or finds it if it is there already; returns its offset.
    pub fn place(&mut self, name: &str, ty: TensorType) -> Result<u64, EngineError> {
        if let Some(known) = self.fields.iter().find(|field| field.name == name) {
            if known.ty == ty {
                return Ok(known.offset);
            }
            let (what, name) = ("tensor", name.to_owned());
            return Err(EngineError::DeclaredTwice { what, name, first: known.ty, second: ty });
        }
        let offset = self.bytes;
        self.fields.push(Named { name: name.to_owned(), ty, offset });
        self.bytes = round_up(offset + ty.bytes(), BLOCK_ALIGN);
        Ok(offset)
    }

    /// The tensor of this name. `what` it is (input, result, …) goes into the error.
    pub fn find(&self, what: &'static str, name: &str) -> Result<&Named, EngineError> {
        self.fields.iter().find(|field| field.name == name).ok_or_else(|| EngineError::Unknown {
            what,
            name: name.to_owned(),
            known: self.fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// A compiled graph. It is immutable: only the contents of its memory change from run to run.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) launches: Vec<Launch>,
    pub(crate) inputs: NamedLayout,
    pub(crate) host: NamedLayout,
    pub(crate) results: NamedLayout,
    /// The offset and the bytes of each constant.
    pub(crate) constants: Vec<(u64, Arc<[u8]>)>,
    pub(crate) constant_bytes: u64,
    pub(crate) memory: MemoryPlan,
    pub(crate) labels: Vec<Arc<str>>,
    pub(crate) side_stream_ops: Vec<SideStreamOp>,
}

impl Program {
    /// Compiles `graph`. `inputs` is the layout of its batch: an input that the layout lacks is an error, a field that the
    /// graph does not read is allowed. `states` are those of the session so far; new ones are appended.
    pub fn compile(graph: &Graph, inputs: &NamedLayout, states: &mut NamedLayout) -> Result<Program, EngineError> {
        GraphCompiler::new(graph, inputs, states).run()
    }

    /// The layout of its batch.
    pub fn inputs(&self) -> &NamedLayout {
        &self.inputs
    }

    /// The values that the host sets before a run.
    pub fn host(&self) -> &NamedLayout {
        &self.host
    }

    /// Its results.
    pub fn results(&self) -> &NamedLayout {
        &self.results
    }

    /// The placement of its activations.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Its launches, in order.
    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// The model part each launch belongs to.
    pub fn labels(&self) -> &[Arc<str>] {
        &self.labels
    }

    /// Floating-point operations of its GEMMs.
    pub fn gemm_flops(&self) -> u64 {
        let flops = |launch: &Launch| match launch {
            Launch::Gemm { gemm, .. } => {
                2 * u64::from(gemm.m) * u64::from(gemm.n) * u64::from(gemm.k) * u64::from(gemm.batch)
            }
            _ => 0,
        };
        self.launches.iter().map(flops).sum()
    }

    /// Bytes of its working memory, in whole blocks: host values, batch, results and activations, back to back.
    pub fn working_bytes(&self) -> u64 {
        self.base(Region::Activations) + self.memory.peak_bytes
    }

    /// The offset of one of its regions in the working memory.
    pub(crate) fn base(&self, region: Region) -> u64 {
        let in_order = [self.host.bytes, self.inputs.bytes, self.results.bytes];
        let before = match region {
            Region::Inputs => 1,
            Region::Results => 2,
            Region::Activations => 3,
            _ => 0,
        };
        in_order[..before].iter().sum()
    }

    /// Bytes of its constants, in whole blocks.
    pub fn constant_bytes(&self) -> u64 {
        self.constant_bytes
    }
}
