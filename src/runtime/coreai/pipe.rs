//! Messages between the runtime and its Python process: a length, a JSON header, the raw elements of its tensors.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use serde::{Deserialize, Serialize};

use super::super::{HostTensor, Outputs, TensorData};
use crate::{Error, Result};

/// Largest header of a reply, in bytes.
const MAX_HEADER: u32 = 1 << 20;

/// Most elements of one tensor of a reply; no output of a bundle comes near it.
const MAX_ELEMENTS: usize = 1 << 28;

/// How the elements of a tensor are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    F32,
    I32,
}

/// A tensor whose elements follow the header.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TensorSpec {
    name: String,
    kind: Kind,
    shape: Vec<usize>,
    /// Whether no elements follow: they are those that were sent last under this name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    again: bool,
}

impl TensorSpec {
    fn of(name: &str, tensor: &HostTensor, again: bool) -> Self {
        let kind = match tensor.data() {
            TensorData::Floats(_) => Kind::F32,
            TensorData::Ints(_) => Kind::I32,
        };
        Self { name: name.to_owned(), kind, shape: tensor.shape().to_vec(), again }
    }
}

/// A state to be made anew.
#[derive(Debug, Serialize)]
pub(super) struct StateSpec<'a> {
    pub(super) name: &'a str,
    pub(super) shape: &'a [usize],
}

/// What the process is asked to do.
#[derive(Debug, Serialize)]
#[serde(tag = "step", rename_all = "lowercase")]
pub(super) enum Request<'a> {
    Load { asset: &'a str, path: &'a str },
    Reset { asset: &'a str, states: Vec<StateSpec<'a>> },
    Run { asset: &'a str, function: &'a str, inputs: Vec<TensorSpec>, states: &'a [&'a str] },
}

/// What the process answers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    error: Option<String>,
    version: Option<String>,
    outputs: Vec<TensorSpec>,
}

/// A reply that was read whole.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    /// The request failed, for this reason.
    Failed(String),
    /// The process is ready; version of the package.
    Ready(String),
    /// The request was done.
    Done(Outputs),
}

/// The inputs of one request, of which only what the process does not have yet is sent.
#[derive(Debug)]
pub(super) struct Inputs<'c> {
    inputs: &'c [(&'c str, HostTensor)],
    again: Vec<bool>,
}

/// The tensors that were sent last, by name; the process has them, too.
#[derive(Debug, Default)]
pub(super) struct Sent(BTreeMap<String, HostTensor>);

impl Sent {
    /// The inputs of the next request.
    pub(super) fn next<'c>(&mut self, inputs: &'c [(&'c str, HostTensor)]) -> Inputs<'c> {
        let mut is_held = |name: &str, tensor: &HostTensor| {
            let held = self.0.insert(name.to_owned(), tensor.clone());
            held.is_some_and(|held| held.shares_with(tensor))
        };
        Inputs { inputs, again: inputs.iter().map(|(name, tensor)| is_held(name, tensor)).collect() }
    }
}

impl Inputs<'_> {
    /// Of a request that has none.
    pub(super) const NONE: Self = Self { inputs: &[], again: Vec::new() };

    /// The specifications, to be put into the request that is sent with these inputs.
    pub(super) fn specs(&self) -> Vec<TensorSpec> {
        self.iter().map(|(name, tensor, again)| TensorSpec::of(name, tensor, again)).collect()
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &HostTensor, bool)> {
        self.inputs.iter().zip(&self.again).map(|((name, tensor), again)| (*name, tensor, *again))
    }
}

/// Sends a request and the elements of its inputs.
pub(super) fn send(to: &mut impl Write, request: &Request<'_>, inputs: &Inputs<'_>) -> std::io::Result<()> {
    let header = serde_json::to_vec(request)?;
    let length = u32::try_from(header.len()).map_err(std::io::Error::other)?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&header)?;
    for (_, tensor, _) in inputs.iter().filter(|(.., again)| !again) {
        let bytes: Vec<u8> = match tensor.data() {
            TensorData::Floats(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            TensorData::Ints(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        to.write_all(&bytes)?;
    }
    to.flush()
}

/// Reads one reply; none when the process has closed the pipe before it.
pub(super) fn receive(from: &mut impl Read) -> Result<Option<Reply>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other.map_err(broken)?,
    }
    let length = u32::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(broken(format!("a header of {length} bytes")));
    }
    let mut header = vec![0; length as usize];
    from.read_exact(&mut header).map_err(broken)?;
    let header: Header = serde_json::from_slice(&header).map_err(broken)?;
    if let Some(error) = header.error {
        return Ok(Some(Reply::Failed(error)));
    }
    if let Some(version) = header.version {
        return Ok(Some(Reply::Ready(version)));
    }
    let outputs: Result<Outputs> = header.outputs.into_iter().map(|spec| receive_tensor(from, spec)).collect();
    Ok(Some(Reply::Done(outputs?)))
}

fn receive_tensor(from: &mut impl Read, spec: TensorSpec) -> Result<(String, HostTensor)> {
    let elements = spec.shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent));
    let Some(elements) = elements.filter(|&elements| elements <= MAX_ELEMENTS) else {
        return Err(broken(format!("an output of shape {:?}", spec.shape)));
    };
    let mut bytes = vec![0; elements * 4];
    from.read_exact(&mut bytes).map_err(broken)?;
    let (words, _) = bytes.as_chunks::<4>();
    let data = match spec.kind {
        Kind::F32 => TensorData::Floats(words.iter().map(|&word| f32::from_le_bytes(word)).collect()),
        Kind::I32 => TensorData::Ints(words.iter().map(|&word| i32::from_le_bytes(word)).collect()),
    };
    Ok((spec.name, HostTensor::new(spec.shape, data)?))
}

fn broken(found: impl std::fmt::Display) -> Error {
    Error::environment("the reply of the Core AI process cannot be read").found(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply as the process writes it.
    fn reply(header: &str, payload: &[u8]) -> Vec<u8> {
        [&(header.len() as u32).to_le_bytes(), header.as_bytes(), payload].concat()
    }

    const TWO_OUTPUTS: &str = r#"{"outputs": [
        {"name": "logits", "kind": "f32", "shape": [1, 2]}, {"name": "ids", "kind": "i32", "shape": []}]}"#;

    fn payload() -> Vec<u8> {
        [1.5_f32.to_le_bytes(), (-2.0_f32).to_le_bytes(), (-7_i32).to_le_bytes()].concat()
    }

    #[test]
    fn outputs_are_read_with_their_shapes() {
        let mut bytes = &reply(TWO_OUTPUTS, &payload())[..];
        let expected = [
            ("logits".to_owned(), HostTensor::floats(vec![1, 2], vec![1.5, -2.0]).unwrap()),
            ("ids".to_owned(), HostTensor::ints(vec![], vec![-7]).unwrap()),
        ];
        assert_eq!(receive(&mut bytes).unwrap(), Some(Reply::Done(expected.into_iter().collect())));
        assert_eq!(receive(&mut bytes).unwrap(), None);
    }

    #[test]
    fn greetings_and_failures_are_told_apart() {
        let ready = receive(&mut &reply(r#"{"version": "1.0"}"#, &[])[..]).unwrap();
        assert_eq!(ready, Some(Reply::Ready("1.0".to_owned())));
        let failed = receive(&mut &reply(r#"{"error": "KeyError: x"}"#, &[])[..]).unwrap();
        assert_eq!(failed, Some(Reply::Failed("KeyError: x".to_owned())));
    }

    #[test]
    fn a_reply_cut_anywhere_is_an_error() {
        let whole = reply(TWO_OUTPUTS, &payload());
        for length in 4..whole.len() {
            assert!(receive(&mut &whole[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn replies_that_claim_too_much_are_errors() {
        assert!(receive(&mut &u32::MAX.to_le_bytes()[..]).is_err());
        for shape in ["[4294967296, 4294967296, 4294967296]", "[1073741824]", "[-1]"] {
            let header = format!(r#"{{"outputs": [{{"name": "x", "kind": "f32", "shape": {shape}}}]}}"#);
            assert!(receive(&mut &reply(&header, &[])[..]).is_err(), "{shape}");
        }
    }

    #[test]
    fn a_request_carries_the_elements_that_the_process_does_not_have() {
        let inputs = [
            ("x", HostTensor::floats(vec![1], vec![0.5]).unwrap()),
            ("pos", HostTensor::ints(vec![1], vec![3]).unwrap()),
        ];
        let mut sent = Sent::default();
        let mut message = |inputs: &[(&str, HostTensor)]| {
            let inputs = sent.next(inputs);
            let request =
                Request::Run { asset: "decoder", function: "decode", inputs: inputs.specs(), states: &["keyCache"] };
            let mut bytes = Vec::new();
            send(&mut bytes, &request, &inputs).unwrap();
            let (header, payload) = bytes[4..].split_at(u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize);
            (serde_json::from_slice::<serde_json::Value>(header).unwrap(), payload.to_vec())
        };
        let (header, payload) = message(&inputs);
        let expected = serde_json::json!({
            "step": "run", "asset": "decoder", "function": "decode", "states": ["keyCache"],
            "inputs": [{"name": "x", "kind": "f32", "shape": [1]}, {"name": "pos", "kind": "i32", "shape": [1]}],
        });
        assert_eq!(header, expected);
        assert_eq!(payload, [0.5_f32.to_le_bytes(), 3_i32.to_le_bytes()].concat());

        // The same tensor is not sent again; an equal one that was made anew is.
        let [(_, x), (_, pos)] = inputs;
        let next = [("x", x.clone()), ("pos", HostTensor::ints(vec![1], vec![3]).unwrap())];
        let (header, payload) = message(&next);
        assert_eq!(header["inputs"][0], serde_json::json!({"name": "x", "kind": "f32", "shape": [1], "again": true}));
        assert_eq!(payload, 3_i32.to_le_bytes());
        // Under another name it is another input.
        let (_, payload) = message(&[("y", x), ("pos", pos)]);
        assert_eq!(payload, [0.5_f32.to_le_bytes(), 3_i32.to_le_bytes()].concat());
    }
}
