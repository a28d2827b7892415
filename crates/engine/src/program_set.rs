//! The programs of one model over one set of parameters, and every byte they take.

use std::sync::Arc;

use tandem_device::bytes::{BLOCK_ALIGN, round_up};
use tandem_device::{DType, DeviceKind, Gemm};

use crate::error::EngineError;
use crate::graph::{Graph, ParameterSpan};
use crate::lower::Launch;
use crate::parameters::Parameters;
use crate::program::{NamedLayout, Program};
use crate::tensor::accumulator;

/// A program of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub(crate) usize);

/// A part of a session's memory that is allocated as one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// The parameters, or one optimizer state of them.
    ParameterSpan(ParameterSpan),
    /// Memory that persists across runs.
    States,
    /// The constants of all programs.
    Constants,
    /// GEMM workspace, on cards.
    Workspace,
    /// Working memory of the running program: host values, batch, results, activations.
    Working,
}

/// Size of the GEMM workspace, on cards: one for each of the two streams of a captured graph.
pub const WORKSPACE_BYTES: u64 = 2 * Gemm::WORKSPACE_BYTES;

/// A line of the memory table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLine {
    /// The part of a session's memory.
    pub kind: MemoryKind,
    /// Its name in memory tables.
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
}

/// Programs over one set of parameters. A pure value: it allocates no device memory.
#[derive(Clone, Debug)]
pub struct ProgramSet {
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) precision: DType,
    pub(crate) spans: Vec<ParameterSpan>,
    pub(crate) states: NamedLayout,
    pub(crate) programs: Vec<Program>,
    pub(crate) names: Vec<String>,
    /// Number of late programs a session has room for.
    pub(crate) late_slots: usize,
}

impl ProgramSet {
    /// An empty set. `spans` are the gradients and optimizer states of the parameters; [`ParameterSpan::Compute`] is added
    /// automatically if `precision` is bf16.
    pub fn new(parameters: Arc<Parameters>, precision: DType, spans: &[ParameterSpan]) -> ProgramSet {
        let used = |span: &ParameterSpan| match span {
            ParameterSpan::Parameters => true,
            ParameterSpan::Compute => precision == DType::BF16,
            other => spans.contains(other),
        };
        let spans = ParameterSpan::ALL.into_iter().filter(used).collect();
        let (states, programs, names) = (NamedLayout::default(), Vec::new(), Vec::new());
        ProgramSet { parameters, precision, spans, states, programs, names, late_slots: 0 }
    }

    /// Compiles `graph` and adds it. `inputs` is the layout of its batch.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        graph: &Graph,
        inputs: &NamedLayout,
    ) -> Result<ProgramId, EngineError> {
        assert_eq!(graph.precision(), self.precision, "all programs of a set have the same precision");
        self.programs.push(Program::compile(graph, inputs, &mut self.states)?);
        self.names.push(name.into());
        Ok(ProgramId(self.programs.len() - 1))
    }

    /// Reserves memory for `slots` late programs, compiled while a session runs ([`Session::add_late_program`]), each with as many
    /// constants as the largest program of the set.
    ///
    /// [`Session::add_late_program`]: crate::Session::add_late_program
    pub fn reserve_late_slots(&mut self, slots: usize) {
        self.late_slots = slots;
    }

    /// Compiles a program for [`Session::add_late_program`]: it has no states besides those of the set.
    ///
    /// [`Session::add_late_program`]: crate::Session::add_late_program
    pub fn compile_late(&self, graph: &Graph, inputs: &NamedLayout) -> Result<Program, EngineError> {
        assert_eq!(graph.precision(), self.precision, "all programs of a set have the same precision");
        let mut states = self.states.clone();
        let program = Program::compile(graph, inputs, &mut states)?;
        assert_eq!(states, self.states, "a late program declares a new state");
        Ok(program)
    }

    /// The offset of the first late program's constants, and the bytes that each late program has for them.
    pub(crate) fn late_constants(&self) -> (u64, u64) {
        let bytes = || self.programs.iter().map(|program| program.constant_bytes);
        (bytes().sum(), if self.late_slots == 0 { 0 } else { bytes().max().unwrap_or(0) })
    }

    /// The program of an id.
    pub fn program(&self, id: ProgramId) -> &Program {
        &self.programs[id.0]
    }

    /// The name of a program.
    pub fn name(&self, id: ProgramId) -> &str {
        &self.names[id.0]
    }

    /// The parameters the programs share.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    /// The spans: parameters, gradients and optimizer states.
    pub fn spans(&self) -> &[ParameterSpan] {
        &self.spans
    }

    /// The element type the programs compute in.
    pub fn precision(&self) -> DType {
        self.precision
    }

    /// Every byte a session allocates on a device of this kind, in whole blocks, in order of allocation. Programs share one
    /// working memory, as large as the largest of them needs. Cards have a GEMM workspace as well, shared by all programs;
    /// simulated cards have it too and do not use it, so that a plan that fits there fits a real card.
    pub fn lines(&self, kind: DeviceKind) -> Vec<MemoryLine> {
        let has_gemms = |program: &Program| program.launches.iter().any(|launch| matches!(launch, Launch::Gemm { .. }));
        let has_workspace = kind != DeviceKind::Cpu && self.programs.iter().any(has_gemms);
        let mut lines: Vec<MemoryLine> = self.spans.iter().map(|&span| self.span_line(span)).collect();
        let (constants, late) = self.late_constants();
        let working = self.programs.iter().map(Program::working_bytes).max().unwrap_or(0);
        let mut line = |kind, name, bytes| lines.push(MemoryLine { kind, name, bytes: round_up(bytes, BLOCK_ALIGN) });
        line(MemoryKind::States, "states", self.states.bytes);
        line(MemoryKind::Constants, "tables", constants + late * self.late_slots as u64);
        line(MemoryKind::Workspace, "workspace", if has_workspace { WORKSPACE_BYTES } else { 0 });
        line(MemoryKind::Working, "activations", working);
        lines
    }

    /// The sum of [`ProgramSet::lines`].
    pub fn bytes(&self, kind: DeviceKind) -> u64 {
        self.lines(kind).iter().map(|line| line.bytes).sum()
    }

    fn span_line(&self, span: ParameterSpan) -> MemoryLine {
        let acc = accumulator(self.precision);
        let (name, dtype) = match span {
            ParameterSpan::Parameters => ("parameters", acc),
            ParameterSpan::Compute => ("compute parameters", self.precision),
            ParameterSpan::Gradients => ("gradients", acc),
            ParameterSpan::FirstMoment => ("optimizer first moment", acc),
            ParameterSpan::SecondMoment => ("optimizer second moment", acc),
            ParameterSpan::Average => ("averaged parameters", acc),
        };
        let bytes = round_up(self.parameters.elements() * dtype.bytes(), BLOCK_ALIGN);
        MemoryLine { kind: MemoryKind::ParameterSpan(span), name, bytes }
    }

    /// The program with the largest activation memory, and its name.
    pub fn largest(&self) -> Option<(&str, &Program)> {
        let peak = |(_, program): &(&String, &Program)| program.memory.peak_bytes;
        let (name, program) = self.names.iter().zip(&self.programs).max_by_key(peak)?;
        Some((name, program))
    }
}
