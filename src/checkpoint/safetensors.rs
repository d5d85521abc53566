//! Reads the header of one `.safetensors` file: an 8-byte little-endian length, that many bytes of JSON, the data.
//!
//! Nothing in the file is trusted: lengths are checked against the size of the file before memory is asked for, and
//! the tensors must cover the data exactly, without gap or overlap.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Number;

use crate::storage::{ReadAt, StoredTensor};
use crate::{ElementType, Error, Result};

use super::disguise;
use super::unique::unique_entries;

/// Largest header that is read, in bytes. It is the limit of the safetensors format itself.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Bytes before the header.
const PREFIX_BYTES: u64 = 8;

/// The tensors of `source`, sorted by name; their bytes are not read.
pub(super) fn read_shard(source: &Arc<dyn ReadAt>) -> Result<Vec<StoredTensor>> {
    read_unnamed(source).map_err(|e| e.at(source.name()))
}

fn read_unnamed(source: &Arc<dyn ReadAt>) -> Result<Vec<StoredTensor>> {
    let header = header_bytes(source.as_ref())?;
    let data_start = PREFIX_BYTES + header.len() as u64;
    let header: Header = serde_json::from_slice(&header).map_err(|e| header_error(&e))?;
    let mut tensors = Vec::with_capacity(header.0.len());
    for (name, entry) in header.0 {
        tensors.push(Placed::new(name, &entry)?);
    }
    let end = data_start.checked_add(contiguous_end(&tensors)?);
    check_size(source.size(), end)?;
    Ok(tensors.into_iter().map(|tensor| tensor.store(source, data_start)).collect())
}

/// Reads the JSON of the header after its length is known to be possible.
fn header_bytes(source: &dyn ReadAt) -> Result<Vec<u8>> {
    let length = usize::try_from(header_length(source)?);
    let length = length.map_err(|_| Error::environment("the header does not fit in memory"))?;
    let mut header = vec![0; length];
    source.read_exact_at(&mut header, PREFIX_BYTES)?;
    Ok(header)
}

/// Length of the header, if the file and the format have room for it.
fn header_length(source: &dyn ReadAt) -> Result<u64> {
    let size = source.size();
    let look = usize::try_from(size).map_or(disguise::LOOK_BYTES, |size| size.min(disguise::LOOK_BYTES));
    let mut start = vec![0; look];
    source.read_exact_at(&mut start, 0)?;
    let length = start.first_chunk().map(|prefix| u64::from_le_bytes(*prefix));
    let room = size.saturating_sub(PREFIX_BYTES);
    if let Some(length) = length.filter(|&length| length <= room.min(MAX_HEADER_BYTES)) {
        return Ok(length);
    }
    // Only now: the first bytes of a sound file can be those of another format, as its header may be of any length.
    disguise::refuse_foreign(&start)?;
    Err(match length {
        None => Error::input("not a safetensors file").found(format!("{size} bytes")).expected("8 bytes or more"),
        Some(length) if length > room => {
            Error::input("the header is longer than the file, so this is no complete safetensors file")
                .found(format!("a header of {length} bytes"))
                .expected(format!("at most {room} bytes"))
                .hint("download the file again")
        }
        Some(length) => Error::input("the header is larger than the format allows")
            .found(format!("{length} bytes"))
            .expected(format!("at most {MAX_HEADER_BYTES} bytes")),
    })
}

fn header_error(error: &serde_json::Error) -> Error {
    Error::input(format!("the header is not valid: {error}"))
}

/// The header as written, by tensor name.
struct Header(BTreeMap<String, Entry>);

/// One tensor as the header describes it. A key that is not known might change the meaning, so it is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<Number>,
    data_offsets: [Number; 2],
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an entry for every tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Header, A::Error> {
                unique_entries(map, Some("__metadata__")).map(Header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// A tensor whose type, shape and byte count agree.
struct Placed {
    name: String,
    element: ElementType,
    shape: Vec<usize>,
    /// Bytes from the start of the data.
    range: Range<u64>,
}

impl Placed {
    fn new(name: String, entry: &Entry) -> Result<Self> {
        match Self::parts(entry) {
            Ok((element, shape, range)) => Ok(Self { name, element, shape, range }),
            Err(error) => Err(error.at(tensor(&name))),
        }
    }

    fn parts(entry: &Entry) -> Result<(ElementType, Vec<usize>, Range<u64>)> {
        let element = element_type(&entry.dtype)?;
        let shape = shape(&entry.shape)?;
        let range = byte_range(&entry.data_offsets)?;
        let declared = byte_count(&shape, element).ok_or_else(|| {
            Error::input("the size of the shape is more than a number can hold").found(format!("{shape:?}"))
        })?;
        let given = range.end - range.start;
        if declared != given {
            return Err(Error::input("the data offsets do not fit the shape")
                .found(format!("{given} bytes"))
                .expected(format!("{declared} bytes for {} {shape:?}", entry.dtype)));
        }
        Ok((element, shape, range))
    }

    fn store(self, source: &Arc<dyn ReadAt>, data_start: u64) -> StoredTensor {
        StoredTensor {
            name: self.name.into(),
            source: Arc::clone(source),
            offset: data_start + self.range.start,
            element: self.element,
            shape: self.shape,
        }
    }
}

fn tensor(name: &str) -> String {
    format!("tensor `{name}`")
}

/// The names that safetensors gives to the element types that are read.
const ELEMENT_TYPES: [(&str, ElementType); 13] = [
    ("F64", ElementType::F64),
    ("F32", ElementType::F32),
    ("F16", ElementType::F16),
    ("BF16", ElementType::BF16),
    ("I64", ElementType::I64),
    ("I32", ElementType::I32),
    ("I16", ElementType::I16),
    ("I8", ElementType::I8),
    ("U64", ElementType::U64),
    ("U32", ElementType::U32),
    ("U16", ElementType::U16),
    ("U8", ElementType::U8),
    ("BOOL", ElementType::Bool),
];

fn element_type(dtype: &str) -> Result<ElementType> {
    if let Some((_, element)) = ELEMENT_TYPES.iter().find(|(name, _)| *name == dtype) {
        return Ok(*element);
    }
    let supported: Vec<_> = ELEMENT_TYPES.iter().map(|(name, _)| *name).collect();
    let error = Error::input("the element type is not supported").found(dtype).expected(supported.join(", "));
    let scaled = ["F8_", "F6_", "F4"].iter().any(|family| dtype.starts_with(family));
    Err(if scaled {
        error.hint("such weights need their scales (`weight_scale_inv`): dequantise the checkpoint to BF16 first")
    } else {
        error
    })
}

fn shape(dims: &[Number]) -> Result<Vec<usize>> {
    dims.iter()
        .map(|dim| dim.as_u64().and_then(|dim| usize::try_from(dim).ok()).ok_or(dim))
        .collect::<Result<_, _>>()
        .map_err(|dim| Error::input("not a dimension").at("shape").found(dim).expected("an integer from 0 on"))
}

fn byte_range([start, end]: &[Number; 2]) -> Result<Range<u64>> {
    match (start.as_u64(), end.as_u64()) {
        (Some(start), Some(end)) if start <= end => Ok(start..end),
        _ => Err(Error::input("not a range of bytes")
            .at("data_offsets")
            .found(format!("[{start}, {end}]"))
            .expected("a start and an end not before it")),
    }
}

/// Bytes of a tensor, if every partial product fits.
fn byte_count(shape: &[usize], element: ElementType) -> Option<u64> {
    let elements = shape.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim))?;
    u64::try_from(elements).ok()?.checked_mul(u64::try_from(element.size()).ok()?)
}

/// Where the data ends, if the tensors follow one another from the start of the data on.
fn contiguous_end(tensors: &[Placed]) -> Result<u64> {
    let mut by_offset: Vec<_> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    let mut end = 0;
    let mut before: Option<&Placed> = None;
    for next in by_offset {
        if next.range.start != end {
            return Err(misplaced(before, next, end).at(tensor(&next.name)));
        }
        end = next.range.end;
        before = Some(next);
    }
    Ok(end)
}

fn misplaced(before: Option<&Placed>, next: &Placed, end: u64) -> Error {
    let place = before.map_or_else(|| "the start of the data".to_owned(), |before| format!("`{}`", before.name));
    let problem = if next.range.start < end { "it overlaps" } else { "there is a gap between it and" };
    Error::input(format!("{problem} {place}"))
        .found(format!("data offset {}", next.range.start))
        .expected(format!("data offset {end}"))
}

fn check_size(found: u64, expected: Option<u64>) -> Result<()> {
    let Some(expected) = expected else {
        return Err(Error::input("the data ends past the largest file offset"));
    };
    let problem = match found.cmp(&expected) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => format!("the file is {} short", byte_amount(expected - found)),
        std::cmp::Ordering::Greater => format!("the file is {} too long", byte_amount(found - expected)),
    };
    Err(Error::input(problem)
        .found(format!("{found} bytes"))
        .expected(format!("{expected} bytes from its header"))
        .hint("download the file again"))
}

fn byte_amount(bytes: u64) -> String {
    if bytes == 1 { "1 byte".to_owned() } else { format!("{bytes} bytes") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixtures::{file, shard, typed_shard};
    use super::*;
    use crate::error::ErrorClass;
    use crate::storage::MemorySource;

    fn read(bytes: &[u8]) -> Result<Vec<StoredTensor>> {
        let source: Arc<dyn ReadAt> = Arc::new(MemorySource::new("x.safetensors", bytes));
        read_shard(&source)
    }

    /// The error of a refused file, with its hint.
    fn refusal(bytes: &[u8]) -> String {
        let error = read(bytes).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Input);
        format!("{error:?}")
    }

    fn assert_refused(cases: &[(Vec<u8>, &str)]) {
        for (bytes, expected) in cases {
            assert_eq!(refusal(bytes), format!("x.safetensors: {expected}"));
        }
    }

    /// A file of one tensor `a` with this entry and as many data bytes.
    fn entry(dtype: &str, shape: &str, offsets: &str, data: usize) -> Vec<u8> {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
        file(&header, &vec![0; data])
    }

    #[test]
    fn a_wrong_file_size_is_told_in_bytes() {
        let whole = shard(&[("a", &[1, 2, 3, 4])]);
        let size = whole.len();
        let long = [whole.as_slice(), &[0; 3]].concat();
        let sentence = |found: usize, amount: &str| {
            let sizes = format!("found {found} bytes, expected {size} bytes from its header");
            format!("the file is {amount}: {sizes} (hint: download the file again)")
        };
        assert_refused(&[
            (whole[..size - 3].to_vec(), &sentence(size - 3, "3 bytes short")),
            (long, &sentence(size + 3, "3 bytes too long")),
        ]);
    }

    #[test]
    fn every_cut_is_refused() {
        let whole = shard(&[("a", &[1, 2, 3, 4]), ("b", &[5, 6])]);
        for size in 0..whole.len() {
            refusal(&whole[..size]);
        }
        assert_eq!(read(&whole).unwrap().len(), 2);
    }

    #[test]
    fn foreign_files_are_recognised() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n";
        let page = b"<!doctype HTML>\n<title>404</title>";
        assert_refused(&[
            (
                pointer.to_vec(),
                "a Git-LFS pointer, not the file itself \
                 (hint: run `git lfs pull` in the folder, or download the file again)",
            ),
            (
                page.to_vec(),
                "a web page saved in place of the file \
                 (hint: download the file again; a private model needs you to be logged in)",
            ),
            (b"GGUF\x03\0\0\0".to_vec(), "a GGUF file (hint: use the original safetensors checkpoint)"),
            (b"PK\x03\x04\0\0\x08\x08".to_vec(), "a PyTorch pickle (hint: save the model as safetensors first)"),
            (b"1234".to_vec(), "not a safetensors file: found 4 bytes, expected 8 bytes or more"),
        ]);
    }

    #[test]
    fn a_header_length_may_look_like_another_format() {
        // 640 is written `80 02`, as a pickle begins.
        let header = format!("{:640}", r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#);
        assert_eq!(read(&file(&header, &[7])).unwrap().len(), 1);
    }

    /// A file that claims a size; only its first bytes may be read.
    #[derive(Debug)]
    struct Claim {
        header: u64,
        size: u64,
    }

    impl ReadAt for Claim {
        fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
            assert!(offset == 0 && buffer.len() <= disguise::LOOK_BYTES, "the header is read before it is judged");
            buffer[..8].copy_from_slice(&self.header.to_le_bytes());
            Ok(())
        }

        fn size(&self) -> u64 {
            self.size
        }

        fn name(&self) -> &str {
            "x.safetensors"
        }
    }

    #[test]
    fn an_impossible_header_length_is_refused_unread() {
        let cases = [
            (u64::MAX, 40, "found a header of 18446744073709551615 bytes, expected at most 32 bytes"),
            (1_000_000_000_000, 40, "found a header of 1000000000000 bytes, expected at most 32 bytes"),
            (33, 40, "found a header of 33 bytes, expected at most 32 bytes"),
            (MAX_HEADER_BYTES + 1, u64::MAX, "found 100000001 bytes, expected at most 100000000 bytes"),
        ];
        for (header, size, expected) in cases {
            let source: Arc<dyn ReadAt> = Arc::new(Claim { header, size });
            let message = read_shard(&source).unwrap_err().to_string();
            assert!(message.ends_with(expected), "{message}");
        }
    }

    #[test]
    fn headers_that_are_not_valid_json_are_refused() {
        let entry = r#""a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
        let twice = &format!("{{{entry},{entry}}}");
        let metadata_twice = r#"{"__metadata__":{},"__metadata__":{}}"#;
        let cases = [
            ("", "EOF while parsing a value at line 1 column 0"),
            ("{", "EOF while parsing an object at line 1 column 1"),
            ("[]", "invalid type: sequence, expected an object with an entry for every tensor at line 1 column 0"),
            (twice, "duplicate tensor name `a`"),
            (metadata_twice, "duplicate tensor name `__metadata__`"),
            (r#"{"a":1}"#, "tensor `a`: invalid type: integer `1`, expected struct Entry at line 1 column 6"),
            (r#"{"a":{"dtype":"U8","shape":[0]}}"#, "tensor `a`: missing field `data_offsets` at line 1 column 31"),
            (r#"{"a":{"dtype":"U8","dtype":"U8"}}"#, "tensor `a`: duplicate field `dtype` at line 1 column 26"),
            (r#"{"a":{"scale":2}}"#, "tensor `a`: unknown field `scale`"),
        ];
        for (header, expected) in cases {
            let message = refusal(&file(header, &[]));
            assert!(message.starts_with(&format!("x.safetensors: the header is not valid: {expected}")), "{message}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let deep = "[".repeat(200_000);
        for before in ["", r#"{"a":"#, r#"{"__metadata__":"#, r#"{"a":{"shape":"#] {
            refusal(&file(&format!("{before}{deep}"), &[]));
        }
    }

    #[test]
    fn shapes_and_offsets_must_agree() {
        assert_refused(&[
            (
                entry("F32", "[1000,1000]", "[0,4]", 4),
                "tensor `a`: the data offsets do not fit the shape: \
                 found 4 bytes, expected 4000000 bytes for F32 [1000, 1000]",
            ),
            (
                entry("U8", "[4294967296,4294967296]", "[0,0]", 0),
                "tensor `a`: the size of the shape is more than a number can hold: found [4294967296, 4294967296]",
            ),
            (
                entry("F64", "[4611686018427387904]", "[0,0]", 0),
                "tensor `a`: the size of the shape is more than a number can hold: found [4611686018427387904]",
            ),
            (
                entry("U8", "[4294967296,4294967296,0]", "[0,0]", 0),
                "tensor `a`: the size of the shape is more than a number can hold: found [4294967296, 4294967296, 0]",
            ),
            (
                entry("U8", "[2,-1]", "[0,2]", 2),
                "tensor `a`: shape: not a dimension: found -1, expected an integer from 0 on",
            ),
            (
                entry("U8", "[1.5]", "[0,2]", 2),
                "tensor `a`: shape: not a dimension: found 1.5, expected an integer from 0 on",
            ),
            (
                entry("U8", "[2]", "[2,0]", 2),
                "tensor `a`: data_offsets: not a range of bytes: \
                 found [2, 0], expected a start and an end not before it",
            ),
            (
                entry("U8", "[2]", "[-2,0]", 2),
                "tensor `a`: data_offsets: not a range of bytes: \
                 found [-2, 0], expected a start and an end not before it",
            ),
            (
                entry("U8", "[18446744073709551615]", "[0,18446744073709551615]", 2),
                "the data ends past the largest file offset",
            ),
        ]);
    }

    #[test]
    fn tensors_must_cover_the_data() {
        let two = |a: &str, b: &str| {
            let entry = |name: &str, offsets: &str| {
                format!(r#""{name}":{{"dtype":"U8","shape":[8],"data_offsets":{offsets}}}"#)
            };
            file(&format!("{{{},{}}}", entry("k", a), entry("v", b)), &[0; 24])
        };
        assert_refused(&[
            (two("[0,8]", "[0,8]"), "tensor `v`: it overlaps `k`: found data offset 0, expected data offset 8"),
            (two("[0,8]", "[4,12]"), "tensor `v`: it overlaps `k`: found data offset 4, expected data offset 8"),
            (
                two("[0,8]", "[9,17]"),
                "tensor `v`: there is a gap between it and `k`: found data offset 9, expected data offset 8",
            ),
            (
                two("[9,17]", "[1,9]"),
                "tensor `v`: there is a gap between it and the start of the data: \
                 found data offset 1, expected data offset 0",
            ),
        ]);
    }

    #[test]
    fn element_types_that_are_not_read_are_named() {
        for dtype in ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F6_E2M3", "F4", "C64", "Q9", "bf16", ""] {
            let message = refusal(&entry(dtype, "[2]", "[0,2]", 2));
            let expected = format!(
                "x.safetensors: tensor `a`: the element type is not supported: found {dtype}, \
                 expected F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL"
            );
            assert!(message.starts_with(&expected), "{message}");
            assert_eq!(message.contains("dequantise"), dtype.starts_with('F'), "{message}");
        }
    }

    #[test]
    fn every_listed_element_type_is_read() {
        for (dtype, element) in ELEMENT_TYPES {
            let tensors = read(&typed_shard(&[("a", dtype, vec![3, 1], &vec![0; 3 * element.size()])])).unwrap();
            assert_eq!((tensors[0].element, tensors[0].shape.as_slice()), (element, [3, 1].as_slice()));
        }
    }

    #[test]
    fn empty_tensors_scalars_and_padded_headers_are_fine() {
        let header = r#"{"s":{"dtype":"U8","shape":[],"data_offsets":[0,1]},
            "e":{"dtype":"F32","shape":[0,7],"data_offsets":[1,1]},
            "f":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
            "__metadata__":{"format":"pt"}}      "#;
        let tensors = read(&file(header, &[9])).unwrap();
        let sizes: Vec<_> = tensors.iter().map(|t| (t.name.as_ref(), t.elements(), t.bytes())).collect();
        assert_eq!(sizes, [("e", 0, 0), ("f", 0, 0), ("s", 1, 1)]);
        assert!(read(&file("{}", &[])).unwrap().is_empty());
    }

    /// Tensors with distinct names, small shapes and random bytes.
    fn tensors() -> impl Strategy<Value = BTreeMap<String, (usize, Vec<usize>, Vec<u8>)>> {
        let tensor =
            (0..ELEMENT_TYPES.len(), prop::collection::vec(0_usize..4, 0..4)).prop_flat_map(|(kind, shape)| {
                let size = shape.iter().product::<usize>() * ELEMENT_TYPES[kind].1.size();
                (Just(kind), Just(shape), prop::collection::vec(any::<u8>(), size))
            });
        prop::collection::btree_map("[a-z.0-9\"\\\\é]{0,8}", tensor, 0..6)
    }

    /// The file that the `safetensors` crate writes for these tensors.
    fn serialized(tensors: &BTreeMap<String, (usize, Vec<usize>, Vec<u8>)>) -> Vec<u8> {
        let views = tensors.iter().map(|(name, (kind, shape, data))| {
            let dtype = serde_json::from_value(serde_json::json!(ELEMENT_TYPES[*kind].0)).unwrap();
            (name, ::safetensors::tensor::TensorView::new(dtype, shape.clone(), data).unwrap())
        });
        ::safetensors::serialize(views, None).unwrap()
    }

    proptest! {
        #[test]
        fn files_of_the_reference_writer_are_read_back(tensors in tensors()) {
            let read = read(&serialized(&tensors)).unwrap();
            prop_assert_eq!(read.len(), tensors.len());
            for (tensor, (name, (kind, shape, data))) in read.iter().zip(&tensors) {
                let mut bytes = vec![0; tensor.bytes() as usize];
                tensor.read_at(&mut bytes, 0).unwrap();
                prop_assert_eq!(tensor.name.as_ref(), name);
                prop_assert_eq!(tensor.element, ELEMENT_TYPES[*kind].1);
                prop_assert_eq!(&tensor.shape, shape);
                prop_assert_eq!(&bytes, data);
            }
        }

        #[test]
        fn corrupt_files_are_never_read_where_the_reference_reader_refuses(
            tensors in tensors(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = serialized(&tensors);
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if let Ok(read) = read(&bytes) {
                let reference = ::safetensors::SafeTensors::deserialize(&bytes);
                prop_assert_eq!(reference.map(|reference| reference.len()).ok(), Some(read.len()));
            }
        }
    }
}
