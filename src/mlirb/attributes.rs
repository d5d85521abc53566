//! Attributes: everything an operation says besides its operands.

use std::sync::Arc;

use super::ir::ResourceId;
use super::types::Type;

macro_rules! code_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub(super) const fn code(self) -> u64 {
                match self { $(Self::$variant => $code,)+ }
            }

            pub(super) const fn from_code(code: u64) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// The name used in texts.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

code_enum! {
    /// What lies beyond the edge of a padded tensor.
    PaddingMode {
        /// The other edge.
        Circular = 0 "circular",
        /// One value.
        Constant = 1 "constant",
        /// The tensor mirrored, without its edge.
        Reflect = 2 "reflect",
        /// The edge.
        Replicate = 3 "replicate",
        /// The tensor mirrored, with its edge.
        Symmetric = 4 "symmetric",
    }
}

code_enum! {
    /// How the Gaussian error linear unit is computed.
    Approximation {
        /// With the error function.
        None = 0 "none",
        /// With the hyperbolic tangent.
        Tanh = 1 "tanh",
        /// `x * sigmoid(1.702 * x)`.
        Sigmoid = 2 "sigmoid",
    }
}

code_enum! {
    /// What a scatter does with the old and the new element.
    ScatterMode {
        /// The new one.
        Update = 0 "update",
        /// Their sum.
        Add = 1 "add",
        /// Old minus new.
        Sub = 2 "sub",
        /// Their product.
        Mul = 3 "mul",
        /// Old divided by new.
        Div = 4 "div",
        /// The greater.
        Max = 5 "max",
        /// The lesser.
        Min = 6 "min",
    }
}

code_enum! {
    /// What a scan accumulates.
    ScanCombiner {
        /// Running sum.
        Sum = 0 "sum",
        /// Running product.
        Product = 1 "product",
        /// Running minimum.
        Min = 2 "min",
        /// Running maximum.
        Max = 3 "max",
    }
}

code_enum! {
    /// How a resized tensor is sampled.
    Interpolation {
        /// Linear.
        Linear = 0 "linear",
        /// Nearest neighbour.
        NearestNeighbor = 1 "nearest_neighbor",
    }
}

code_enum! {
    /// The kind of memory a tensor has to lie in.
    Backing {
        /// An IOSurface.
        IoSurface = 1 "io_surface",
        /// A Metal buffer.
        MtlBuffer = 2 "mtl_buffer",
        /// The heap.
        Heap = 3 "heap",
    }
}

/// An integer of 1 to 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Integer {
    width: u8,
    unsigned: bool,
    bits: u64,
}

impl Integer {
    /// An integer from its bits in two's complement; `None` unless `width` is 1 to 64 and `bits` fit in it.
    #[must_use]
    pub fn new(width: u64, unsigned: bool, bits: u64) -> Option<Self> {
        let width = u8::try_from(width).ok().filter(|width| (1..=64).contains(width))?;
        (width == 64 || bits >> width == 0).then_some(Self { width, unsigned, bits })
    }

    /// 64 bits, signed.
    #[must_use]
    pub const fn s64(value: i64) -> Self {
        Self { width: 64, unsigned: false, bits: value.cast_unsigned() }
    }

    /// 32 bits, unsigned.
    #[must_use]
    pub const fn u32(value: u32) -> Self {
        Self { width: 32, unsigned: true, bits: value as u64 }
    }

    /// One unsigned bit: a flag of a graph.
    #[must_use]
    pub const fn u1(value: bool) -> Self {
        Self { width: 1, unsigned: true, bits: value as u64 }
    }

    /// One signed bit: a boolean attribute of a composite.
    #[must_use]
    pub const fn s1(value: bool) -> Self {
        Self { width: 1, unsigned: false, bits: value as u64 }
    }

    /// Number of bits.
    #[must_use]
    pub const fn width(self) -> u8 {
        self.width
    }

    /// Whether it is unsigned.
    #[must_use]
    pub const fn is_unsigned(self) -> bool {
        self.unsigned
    }

    /// The bits, zero-extended.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.bits
    }

    /// The value.
    #[must_use]
    pub fn value(self) -> i128 {
        let negative = !self.unsigned && self.width > 1 && self.bits >> (self.width - 1) == 1;
        i128::from(self.bits) - if negative { 1i128 << self.width } else { 0 }
    }
}

/// A floating-point number of a given width, as its IEEE bits, so that equal means identical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Float {
    /// 16 bits.
    Bits16(u16),
    /// 32 bits.
    Bits32(u32),
    /// 64 bits.
    Bits64(u64),
}

impl From<f32> for Float {
    fn from(value: f32) -> Self {
        Self::Bits32(value.to_bits())
    }
}

/// Elements of an inline constant: raw little-endian bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DenseElements {
    /// Whether `bytes` is one element that fills the tensor.
    pub splat: bool,
    /// The elements, row-major; see [`TensorType::inline_bytes`](super::TensorType::inline_bytes).
    pub bytes: Arc<[u8]>,
}

/// A name with parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opaque {
    /// The name.
    pub name: Arc<str>,
    /// Its parameters.
    pub parameters: Vec<Attribute>,
}

/// The declaration of a parameter of a graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ParamDeclaration {
    /// Its name.
    pub name: Arc<str>,
    /// Its type.
    pub ty: Type,
    /// Its value, if it is given.
    pub value: Option<Attribute>,
}

/// A value bound to a parameter, such as the graph an invocation calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ParamConstant {
    /// The value.
    pub value: Attribute,
    /// Its type.
    pub ty: Type,
}

/// Where a tensor has to lie in memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HwConstraints {
    /// Alignment of each axis, and of the whole.
    pub alignments: Vec<i64>,
    /// Interleave factor of each axis.
    pub interleave: Vec<i64>,
    /// Kind of memory.
    pub backing: Backing,
    /// A further encoding underneath.
    pub base: Option<Attribute>,
}

impl HwConstraints {
    /// A tensor of `rank` axes in a Metal buffer without gaps, as Metal kernels take and give.
    #[must_use]
    pub fn mtl_buffer(rank: usize) -> Self {
        Self {
            alignments: vec![1; rank.saturating_add(1)],
            interleave: vec![1; rank],
            backing: Backing::MtlBuffer,
            base: None,
        }
    }
}

/// A source file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SourceFile {
    /// Name.
    pub filename: Arc<str>,
    /// Folder.
    pub directory: Arc<str>,
    /// Hash of its text.
    pub sha256: Arc<str>,
}

/// A range of text in a source file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SourceRange {
    /// The file, an [`Attribute::File`].
    pub file: Attribute,
    /// Start line, start column, end line, end column.
    pub range: [u64; 4],
}

/// Where an operation comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// An [`Attribute::SourceLocation`].
    pub source: Attribute,
    /// The scope: unit, a symbol, or a subprogram.
    pub scope: Attribute,
    /// Locations fused into this one.
    pub fused: Vec<Attribute>,
    /// Further [`Attribute::Metadata`].
    pub metadata: Vec<Attribute>,
    /// The location of the call it was inlined at.
    pub inlined_at: Option<Attribute>,
}

/// A unit of compilation, in terms of DWARF.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CompileUnit {
    /// Source language, such as `DW_LANG_Python`.
    pub language: Arc<str>,
    /// The file, an [`Attribute::File`].
    pub file: Attribute,
    /// The tool that made it.
    pub producer: Arc<str>,
    /// Whether it was optimised.
    pub optimized: bool,
    /// Flags of the tool.
    pub flags: Arc<str>,
}

/// A function of the source, in terms of DWARF.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subprogram {
    /// Its type.
    pub ty: Type,
    /// The [`Attribute::CompileUnit`] it belongs to.
    pub unit: Attribute,
    /// The file, an [`Attribute::File`].
    pub file: Attribute,
    /// Its name.
    pub name: Arc<str>,
    /// Its name for the linker.
    pub linkage_name: Arc<str>,
}

/// Named data attached to a location.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// The name.
    pub name: Arc<str>,
    /// The data.
    pub data: Attribute,
}

/// An entry of the attribute or type table that this reader does not model. Its bytes point into the tables of the
/// file it came from, so it can be shown but not written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RawEntry {
    /// The kind, the first number of the entry.
    pub kind: u64,
    /// All bytes of the entry, kind included.
    pub bytes: Vec<u8>,
}

/// An attribute. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// A string.
    String(Arc<str>),
    /// An integer.
    Integer(Integer),
    /// A floating-point number.
    Float(Float),
    /// A type.
    Type(Type),
    /// A list.
    Array(Arc<[Attribute]>),
    /// The elements of an inline constant.
    DenseElements(DenseElements),
    /// The elements of a constant that lies in a resource.
    DenseResource(ResourceId),
    /// A name with parameters.
    Opaque(Arc<Opaque>),
    /// The declaration of a parameter.
    ParamDeclaration(Arc<ParamDeclaration>),
    /// A value bound to a parameter.
    ParamConstant(Arc<ParamConstant>),
    /// Memory constraints.
    HwConstraints(Arc<HwConstraints>),
    /// The name of a graph, outermost symbol first.
    SymbolRef(Arc<[Arc<str>]>),
    /// Padding mode.
    PaddingMode(PaddingMode),
    /// Phase of the execution lifecycle, as its code.
    LifecyclePhase(u64),
    /// Approximation of the Gaussian error linear unit.
    Approximation(Approximation),
    /// Scatter mode.
    ScatterMode(ScatterMode),
    /// Scan combiner.
    ScanCombiner(ScanCombiner),
    /// Interpolation mode.
    Interpolation(Interpolation),
    /// A source file.
    File(Arc<SourceFile>),
    /// A range of a source file.
    SourceLocation(Arc<SourceRange>),
    /// A unit of compilation.
    CompileUnit(Arc<CompileUnit>),
    /// A function of the source.
    Subprogram(Arc<Subprogram>),
    /// The data of a metadata.
    MetadataData(Arc<Attribute>),
    /// A metadata.
    Metadata(Arc<Metadata>),
    /// A location.
    Location(Arc<Location>),
    /// A location that has metadata only.
    MetadataLocation(Arc<[Attribute]>),
    /// A location that is another attribute.
    OpaqueLocation(Arc<Attribute>),
    /// Named values.
    Dictionary(Arc<[(Arc<str>, Attribute)]>),
    /// Nothing.
    Unit,
    /// An entry stored as assembly text.
    Text(Arc<str>),
    /// An attribute this reader does not model.
    Raw(Arc<RawEntry>),
}

impl Attribute {
    /// A string.
    pub fn string(text: impl Into<Arc<str>>) -> Self {
        Self::String(text.into())
    }

    /// A list.
    pub fn array(items: impl IntoIterator<Item = Self>) -> Self {
        Self::Array(items.into_iter().collect())
    }

    /// A list of strings.
    pub fn strings<S: Into<Arc<str>>>(items: impl IntoIterator<Item = S>) -> Self {
        Self::array(items.into_iter().map(Self::string))
    }

    /// A name with parameters.
    pub fn opaque(name: impl Into<Arc<str>>, parameters: Vec<Self>) -> Self {
        Self::Opaque(Arc::new(Opaque { name: name.into(), parameters }))
    }

    /// Named values, in the order given.
    pub fn dictionary(entries: impl IntoIterator<Item = (Arc<str>, Self)>) -> Self {
        Self::Dictionary(entries.into_iter().collect())
    }

    /// The symbol of a graph.
    pub fn symbol(name: impl Into<Arc<str>>) -> Self {
        Self::SymbolRef([name.into()].into())
    }

    /// A signed 64-bit integer.
    #[must_use]
    pub const fn s64(value: i64) -> Self {
        Self::Integer(Integer::s64(value))
    }

    /// A one-bit flag of a graph.
    #[must_use]
    pub const fn flag(value: bool) -> Self {
        Self::Integer(Integer::u1(value))
    }

    /// The location of everything this crate writes. A versioned location is required; one that names no source
    /// and no scope is the least the loader takes.
    #[must_use]
    pub fn nowhere() -> Self {
        let empty: Arc<str> = "".into();
        let file =
            Self::File(Arc::new(SourceFile { filename: empty.clone(), directory: empty.clone(), sha256: empty }));
        let source = Self::SourceLocation(Arc::new(SourceRange { file, range: [0; 4] }));
        Self::Location(Arc::new(Location {
            source,
            scope: Self::Unit,
            fused: Vec::new(),
            metadata: Vec::new(),
            inlined_at: None,
        }))
    }

    /// The text, if it is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The items, if it is a list.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The integer, if it is one.
    #[must_use]
    pub const fn as_integer(&self) -> Option<Integer> {
        match self {
            Self::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// The name and the parameters, if it is opaque.
    #[must_use]
    pub fn as_opaque(&self) -> Option<&Opaque> {
        match self {
            Self::Opaque(opaque) => Some(opaque),
            _ => None,
        }
    }
}
