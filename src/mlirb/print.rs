//! Programs as text, one operation a line.
//!
//! A person reads it and snapshots compare it; nothing parses it.

use std::fmt::{self, Display, Formatter};

use super::attributes::{Attribute, DenseElements, Float, HwConstraints, Opaque};
use super::graph_view::{GraphPort, GraphView};
use super::ir::{Block, Operation, Program, Properties, is_decomposable};
use super::properties::property_fields;
use super::types::{ScalarType, TensorType, Type};

/// Most parts of one attribute or type that are shown.
const MAX_PARTS: usize = 1024;
/// Most elements of an inline constant that are shown.
const MAX_ELEMENTS: u64 = 16;
/// Most bytes that are shown where elements are not.
const MAX_BYTES: usize = 16;

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        ProgramText { program: self, decompositions: false }.fmt(f)
    }
}

impl Program {
    /// The text with the decompositions of decomposable operations.
    #[must_use]
    pub fn with_decompositions(&self) -> impl Display + '_ {
        ProgramText { program: self, decompositions: true }
    }
}

#[derive(Debug)]
struct ProgramText<'p> {
    program: &'p Program,
    decompositions: bool,
}

impl Display for ProgramText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "asset")?;
        if let Some(version) = self.program.version() {
            write!(f, " version {version}")?;
        }
        writeln!(f, " by {:?}", self.program.producer)?;
        for operation in self.program.operations() {
            writeln!(f)?;
            match GraphView::new(operation) {
                Some(graph) => self.graph(f, graph)?,
                None => self.operation(f, operation, &mut Scope::new("", 0))?,
            }
        }
        self.resources(f)
    }
}

impl ProgramText<'_> {
    fn resources(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, resource) in self.program.resources.iter().enumerate() {
            if index == 0 {
                writeln!(f)?;
            }
            let (key, bytes, alignment) = (&resource.key, resource.bytes, resource.alignment);
            writeln!(f, "resource #{index} {key:?}: {bytes} bytes, aligned to {alignment}")?;
        }
        Ok(())
    }

    fn graph(&self, f: &mut Formatter<'_>, graph: GraphView<'_>) -> fmt::Result {
        let inputs: Vec<String> =
            graph.inputs().iter().enumerate().map(|(index, port)| format!("%{index} {}", port_text(port))).collect();
        let outputs: Vec<String> = graph.outputs().iter().map(port_text).collect();
        write!(f, "graph @{}({}) -> ({})", graph.name(), inputs.join(", "), outputs.join(", "))?;
        for (flag, word) in [(graph.is_private(), "private"), (graph.is_no_inline(), "noinline")] {
            if flag {
                write!(f, " {word}")?;
            }
        }
        if let Some(composite) = graph.composite() {
            write!(f, " composite {composite}")?;
        }
        writeln!(f, " {{")?;
        if let Some(block) = graph.body() {
            self.operations(f, block, &mut Scope::new("", 1))?;
        }
        writeln!(f, "}}")
    }

    fn operations<'b>(&self, f: &mut Formatter<'_>, block: &'b Block, scope: &mut Scope<'b>) -> fmt::Result {
        scope.types.extend(block.arguments.iter().map(|argument| &argument.ty));
        block.operations.iter().try_for_each(|operation| self.operation(f, operation, scope))
    }

    fn operation<'b>(&self, f: &mut Formatter<'_>, operation: &'b Operation, scope: &mut Scope<'b>) -> fmt::Result {
        write!(f, "{:1$}", "", scope.indent * 2)?;
        let first = scope.types.len();
        scope.types.extend(&operation.results);
        let results: Vec<String> =
            (first..scope.types.len()).map(|value| format!("%{}{value}", scope.prefix)).collect();
        if !results.is_empty() {
            write!(f, "{} = ", results.join(", "))?;
        }
        let operands: Vec<String> =
            operation.operands.iter().map(|operand| format!("%{}{}", scope.prefix, operand.index())).collect();
        write!(f, "{}({})", operation.name, operands.join(", "))?;
        properties(f, operation)?;
        let types = operation.operands.iter().map(|operand| scope.types.get(operand.index()).copied());
        let types: Vec<String> = types.map(|ty| ty.map_or("?".to_owned(), Type::to_string)).collect();
        let results: Vec<String> = operation.results.iter().map(Type::to_string).collect();
        write!(f, " : ({}) -> ", types.join(", "))?;
        match results.as_slice() {
            [one] => write!(f, "{one}")?,
            many => write!(f, "({})", many.join(", "))?,
        }
        self.regions(f, operation, scope.indent)
    }

    fn regions(&self, f: &mut Formatter<'_>, operation: &Operation, indent: usize) -> fmt::Result {
        if is_decomposable(&operation.name) && !self.decompositions {
            return writeln!(f);
        }
        for block in operation.regions.iter().filter_map(|region| region.block.as_ref()) {
            let prefix = "_abcdefghijklmnopqrstuvwxyz".get(indent..=indent).unwrap_or("z");
            let arguments = block.arguments.iter().enumerate();
            let arguments: Vec<String> = arguments.map(|(i, arg)| format!("%{prefix}{i}: {}", arg.ty)).collect();
            writeln!(f, " {{ ({})", arguments.join(", "))?;
            self.operations(f, block, &mut Scope::new(prefix, indent + 1))?;
            write!(f, "{:1$}}}", "", indent * 2)?;
        }
        writeln!(f)
    }
}

/// Values of the region that is being shown; the prefix tells them from those around it.
#[derive(Debug)]
struct Scope<'b> {
    prefix: &'b str,
    indent: usize,
    types: Vec<&'b Type>,
}

impl<'b> Scope<'b> {
    const fn new(prefix: &'b str, indent: usize) -> Self {
        Self { prefix, indent, types: Vec::new() }
    }
}

fn port_text(port: &GraphPort<'_>) -> String {
    match port.name {
        Some(name) => format!("{name:?}: {}", port.ty),
        None => port.ty.to_string(),
    }
}

fn properties(f: &mut Formatter<'_>, operation: &Operation) -> fmt::Result {
    let values = match &operation.properties {
        Properties::Known(values) => values,
        Properties::Unknown(bytes) => return write!(f, " {{unknown = {}}}", Hex(bytes)),
    };
    let fields = property_fields(&operation.name).unwrap_or(&[]);
    let known = fields.iter().zip(values).filter_map(|(field, value)| Some((field.name, value.as_ref()?)));
    let texts: Vec<String> = known.map(|(name, value)| format!("{name} = {}", property(operation, value))).collect();
    if texts.is_empty() { Ok(()) } else { write!(f, " {{{}}}", texts.join(", ")) }
}

fn property(operation: &Operation, value: &Attribute) -> String {
    let elements = match (value, operation.results.as_slice()) {
        (Attribute::DenseElements(elements), [Type::Tensor(tensor)]) => elements_text(tensor, elements),
        _ => None,
    };
    elements.unwrap_or_else(|| value.to_string())
}

/// The elements of a small inline constant as numbers; `None` when it is not small or not of a common type.
fn elements_text(tensor: &TensorType, elements: &DenseElements) -> Option<String> {
    let element = tensor.element;
    element
        .element_type()
        .filter(|_| elements.splat || tensor.elements().is_some_and(|count| count <= MAX_ELEMENTS))?;
    let width = usize::try_from(element.inline_bits()? / 8).ok()?;
    let numbers = elements.bytes.chunks(width).map(|bytes| number_text(element, bytes)).collect::<Option<Vec<_>>>()?;
    let numbers = numbers.join(", ");
    Some(match (elements.splat, tensor.shape.is_empty()) {
        (_, true) => numbers,
        (true, false) if tensor.elements() != Some(1) => format!("splat {numbers}"),
        _ => format!("[{numbers}]"),
    })
}

fn number_text(element: ScalarType, bytes: &[u8]) -> Option<String> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let [a, b, c, d, ..] = word;
    Some(match element {
        ScalarType::Bool => (a != 0).to_string(),
        ScalarType::SI8 => a.cast_signed().to_string(),
        ScalarType::SI16 => i16::from_le_bytes([a, b]).to_string(),
        ScalarType::SI32 => i32::from_le_bytes([a, b, c, d]).to_string(),
        ScalarType::SI64 => i64::from_le_bytes(word).to_string(),
        ScalarType::F16 => half::f16::from_le_bytes([a, b]).to_string(),
        ScalarType::BF16 => half::bf16::from_le_bytes([a, b]).to_string(),
        ScalarType::F32 => f32::from_le_bytes([a, b, c, d]).to_string(),
        ScalarType::F64 => f64::from_le_bytes(word).to_string(),
        _ => u64::from_le_bytes(word).to_string(),
    })
}

/// Bytes in hexadecimal, as many as are shown.
struct Hex<'b>(&'b [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "0x")?;
        self.0.iter().take(MAX_BYTES).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if self.0.len() > MAX_BYTES { write!(f, "... ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

impl Display for TensorType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Parts::new(f).tensor(self)
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Parts::new(f).ty(self)
    }
}

impl Display for Attribute {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Parts::new(f).attribute(self)
    }
}

impl Display for Opaque {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Parts::new(f).opaque(self)
    }
}

/// Shows an attribute or a type as far as the number of parts allows.
struct Parts<'f, 'b> {
    f: &'f mut Formatter<'b>,
    left: usize,
}

impl<'f, 'b> Parts<'f, 'b> {
    const fn new(f: &'f mut Formatter<'b>) -> Self {
        Self { f, left: MAX_PARTS }
    }

    /// Shows items with commas between them, until the parts are used up.
    fn list<T>(&mut self, items: &[T], mut show: impl FnMut(&mut Self, &T) -> fmt::Result) -> fmt::Result {
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.f.write_str(", ")?;
            }
            let Some(left) = self.left.checked_sub(1) else { return self.f.write_str("...") };
            self.left = left;
            show(self, item)?;
        }
        Ok(())
    }

    fn ty(&mut self, ty: &Type) -> fmt::Result {
        match ty {
            Type::Scalar(scalar) => scalar.fmt(self.f),
            Type::Tensor(tensor) => self.tensor(tensor),
            Type::Function(function) => {
                self.f.write_str("(")?;
                self.list(&function.operands, Self::ty)?;
                self.f.write_str(") -> (")?;
                self.list(&function.results, Self::ty)?;
                self.f.write_str(")")
            }
            Type::Handle(contents) => self.wrapped("handle", contents),
            Type::Unresolved(inner) => self.wrapped("unresolved", inner),
            Type::Token => self.f.write_str("token"),
            Type::ParamSymbol => self.f.write_str("param.symbol"),
            Type::ParamType => self.f.write_str("param.type"),
            Type::Text(text) => self.f.write_str(text),
            Type::Raw(raw) => write!(self.f, "type#{}<{}>", raw.kind, Hex(&raw.bytes)),
        }
    }

    fn wrapped(&mut self, name: &str, inner: &Type) -> fmt::Result {
        write!(self.f, "{name}<")?;
        self.ty(inner)?;
        self.f.write_str(">")
    }

    fn tensor(&mut self, tensor: &TensorType) -> fmt::Result {
        self.f.write_str("tensor<")?;
        for dim in tensor.shape.iter().take(MAX_PARTS) {
            write!(self.f, "{dim}x")?;
        }
        tensor.element.fmt(self.f)?;
        if let Some(encoding) = &tensor.encoding {
            self.f.write_str(", ")?;
            self.attribute(encoding)?;
        }
        self.f.write_str(">")
    }

    fn attribute(&mut self, attribute: &Attribute) -> fmt::Result {
        match attribute {
            Attribute::String(text) => write!(self.f, "{text:?}"),
            Attribute::Integer(integer) => self.integer(integer.width() == 1, integer.value()),
            Attribute::Float(float) => self.float(*float),
            Attribute::Type(ty) => self.ty(ty),
            Attribute::Array(items) => self.bracketed("[", items, "]"),
            Attribute::DenseElements(elements) => {
                write!(self.f, "{}{}", if elements.splat { "splat " } else { "" }, Hex(&elements.bytes))
            }
            Attribute::DenseResource(id) => write!(self.f, "resource #{}", id.index()),
            Attribute::Opaque(opaque) => self.opaque(opaque),
            Attribute::ParamDeclaration(declaration) => {
                write!(self.f, "{}: ", declaration.name)?;
                self.ty(&declaration.ty)?;
                declaration.value.as_ref().map_or(Ok(()), |value| self.named(" =", value))
            }
            Attribute::ParamConstant(constant) => self.attribute(&constant.value),
            Attribute::HwConstraints(constraints) => self.constraints(constraints),
            Attribute::SymbolRef(names) => write!(self.f, "@{}", names.join("::@")),
            Attribute::PaddingMode(mode) => self.f.write_str(mode.name()),
            Attribute::LifecyclePhase(phase) => write!(self.f, "phase#{phase}"),
            Attribute::Approximation(approximation) => self.f.write_str(approximation.name()),
            Attribute::ScatterMode(mode) => self.f.write_str(mode.name()),
            Attribute::ScanCombiner(combiner) => self.f.write_str(combiner.name()),
            Attribute::Interpolation(mode) => self.f.write_str(mode.name()),
            Attribute::Dictionary(entries) => {
                self.f.write_str("{")?;
                self.list(entries, |parts, (key, value)| parts.named(&format!("{key} ="), value))?;
                self.f.write_str("}")
            }
            Attribute::Unit => self.f.write_str("unit"),
            Attribute::Text(text) => self.f.write_str(text),
            Attribute::Raw(raw) => write!(self.f, "attribute#{}<{}>", raw.kind, Hex(&raw.bytes)),
            debug => self.debug(debug),
        }
    }

    fn debug(&mut self, attribute: &Attribute) -> fmt::Result {
        match attribute {
            Attribute::File(file) => write!(self.f, "{:?}", file.filename),
            Attribute::SourceLocation(source) => {
                self.attribute(&source.file)?;
                let [line, column, ..] = source.range;
                write!(self.f, ":{line}:{column}")
            }
            Attribute::CompileUnit(unit) => self.named("unit", &unit.file),
            Attribute::Subprogram(subprogram) => write!(self.f, "subprogram {:?}", subprogram.name),
            Attribute::MetadataData(data) => self.attribute(data),
            Attribute::Metadata(metadata) => self.named(&format!("{} =", metadata.name), &metadata.data),
            Attribute::Location(location) => {
                self.named("loc", &location.source)?;
                location.inlined_at.as_ref().map_or(Ok(()), |call| self.named(" at", call))
            }
            Attribute::MetadataLocation(metadata) => self.bracketed("loc[", metadata, "]"),
            Attribute::OpaqueLocation(inner) => self.named("loc", inner),
            _ => Ok(()),
        }
    }

    fn named(&mut self, name: &str, value: &Attribute) -> fmt::Result {
        write!(self.f, "{name} ")?;
        self.attribute(value)
    }

    fn bracketed(&mut self, open: &str, items: &[Attribute], close: &str) -> fmt::Result {
        self.f.write_str(open)?;
        self.list(items, Self::attribute)?;
        self.f.write_str(close)
    }

    fn integer(&mut self, flag: bool, value: i128) -> fmt::Result {
        if flag { write!(self.f, "{}", value != 0) } else { write!(self.f, "{value}") }
    }

    fn float(&mut self, float: Float) -> fmt::Result {
        match float {
            Float::Bits16(bits) => write!(self.f, "float16#{bits:04x}"),
            Float::Bits32(bits) => write!(self.f, "{:?}", f32::from_bits(bits)),
            Float::Bits64(bits) => write!(self.f, "{:?}", f64::from_bits(bits)),
        }
    }

    fn opaque(&mut self, opaque: &Opaque) -> fmt::Result {
        self.f.write_str(&opaque.name)?;
        self.bracketed("(", &opaque.parameters, ")")
    }

    fn constraints(&mut self, constraints: &HwConstraints) -> fmt::Result {
        let HwConstraints { alignments, interleave, backing, base } = constraints;
        write!(self.f, "{}<align {alignments:?}, interleave {interleave:?}", backing.name())?;
        if let Some(base) = base {
            self.named(", base", base)?;
        }
        self.f.write_str(">")
    }
}
