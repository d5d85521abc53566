//! What is in an asset.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::size;
use super::usage::{Bytes, Usage, callee, operations};
use crate::Result;
use crate::asset::{Asset, AssetMetadata};
use crate::mlirb::{GraphPort, GraphView, Program, Type, is_decomposable};

/// An asset.
#[derive(Debug, Serialize)]
pub(super) struct View {
    path: PathBuf,
    program_bytes: u64,
    /// Stamped on the program.
    producer: String,
    /// The feature level the program asks for, a date as a number.
    level: Option<u64>,
    metadata: AssetMetadata,
    functions: Vec<Function>,
    composites: Vec<Composite>,
    /// How many there are of each operation, in all graphs.
    operations: BTreeMap<String, usize>,
    resources: Vec<Resource>,
}

/// A function that applications call.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Function {
    name: String,
    inputs: Vec<Port>,
    states: Vec<Port>,
    results: Vec<Port>,
    operations: usize,
    #[serde(flatten)]
    bytes: Bytes,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Port {
    name: String,
    #[serde(rename = "type")]
    ty: String,
}

/// A graph that stands for one operation.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Composite {
    graph: String,
    operation: Option<String>,
    /// Calls of it, in all graphs.
    uses: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Resource {
    key: String,
    bytes: u64,
    /// The functions that use it.
    functions: Vec<String>,
}

impl View {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let asset = Asset::open(path)?;
        let program = asset.program();
        let usage = Usage::of(program);
        Ok(Self {
            path: path.to_owned(),
            program_bytes: asset.program_bytes(),
            producer: program.producer.clone(),
            level: program.version(),
            metadata: asset.metadata().clone(),
            functions: functions(program, &usage),
            composites: composites(program),
            operations: histogram(program),
            resources: resources(program, &usage),
        })
    }
}

fn functions(program: &Program, usage: &Usage<'_>) -> Vec<Function> {
    let entries = program.graphs().filter(|graph| !graph.is_private());
    entries.zip(usage.entries()).map(|(graph, (_, bytes))| function(graph, bytes)).collect()
}

fn function(graph: GraphView<'_>, bytes: Bytes) -> Function {
    let of_kind = |state: bool| {
        let ports = graph.inputs().into_iter().filter(|port| matches!(port.ty, Type::Handle(_)) == state);
        ports.map(|port| port_view(&port)).collect()
    };
    let outputs = graph.outputs();
    Function {
        name: graph.name().to_owned(),
        inputs: of_kind(false),
        states: of_kind(true),
        results: outputs.iter().filter(|port| *port.ty != Type::Token).map(port_view).collect(),
        operations: graph.body().map_or(0, |body| body.operations.len()),
        bytes,
    }
}

fn port_view(port: &GraphPort<'_>) -> Port {
    let ty = match port.ty {
        Type::Handle(contents) => contents,
        other => other,
    };
    Port { name: port.name.unwrap_or_default().to_owned(), ty: ty.to_string() }
}

fn composites(program: &Program) -> Vec<Composite> {
    let mut calls: BTreeMap<&str, usize> = BTreeMap::new();
    for name in program.graphs().flat_map(|graph| operations(graph.operation())).filter_map(callee) {
        *calls.entry(name).or_default() += 1;
    }
    let private = program.graphs().filter(|graph| graph.is_private());
    private
        .map(|graph| Composite {
            graph: graph.name().to_owned(),
            operation: graph.composite().map(|declaration| declaration.name.to_string()),
            uses: calls.get(graph.name()).copied().unwrap_or(0),
        })
        .collect()
}

/// What stands inside a decomposable operation is another way to say the same, so it is not counted.
fn histogram(program: &Program) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut left: Vec<_> = program.graphs().map(GraphView::operation).collect();
    while let Some(operation) = left.pop() {
        for inner in operation.regions.iter().filter_map(|region| region.block.as_ref()).flat_map(|b| &b.operations) {
            *counts.entry(inner.name.to_string()).or_default() += 1;
            if !is_decomposable(&inner.name) {
                left.push(inner);
            }
        }
    }
    counts
}

fn resources(program: &Program, usage: &Usage<'_>) -> Vec<Resource> {
    let resources = program.resources.iter().enumerate();
    resources
        .map(|(index, resource)| Resource {
            key: resource.key.to_string(),
            bytes: resource.bytes,
            functions: usage.users(index),
        })
        .collect()
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "asset        {}", self.path.display())?;
        writeln!(f, "program      {}", size(self.program_bytes))?;
        writeln!(f, "made by      {}", self.producer)?;
        let dash = || "not known".to_owned();
        writeln!(f, "level        {}", self.level.map_or_else(dash, |level| level.to_string()))?;
        self.functions.iter().try_for_each(|function| write!(f, "\n{function}"))?;
        if !self.composites.is_empty() {
            writeln!(f, "\ncomposites")?;
        }
        for Composite { graph, operation, uses } in &self.composites {
            writeln!(f, "  {uses:>6} x  {graph} ({})", operation.as_deref().unwrap_or("no declaration"))?;
        }
        writeln!(f, "\noperations")?;
        self.operations.iter().try_for_each(|(name, count)| writeln!(f, "  {count:>6} x  {name}"))?;
        if !self.resources.is_empty() {
            writeln!(f, "\nresources")?;
        }
        self.resources.iter().try_for_each(|Resource { key, bytes, functions }| {
            let users = if functions.is_empty() { "nobody".to_owned() } else { functions.join(", ") };
            writeln!(f, "  {bytes:>12}  {key}  used by {users}")
        })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "function     {}, {} operations", self.name, self.operations)?;
        for (kind, ports) in [("input", &self.inputs), ("state", &self.states), ("result", &self.results)] {
            ports.iter().try_for_each(|Port { name, ty }| writeln!(f, "  {kind:<9}  {name}: {ty}"))?;
        }
        let Bytes { shared_bytes, unique_bytes } = self.bytes;
        writeln!(f, "  weights    {shared_bytes} bytes shared with other functions, {unique_bytes} of its own")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_asset_of_apple_shows_what_is_in_it() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/apple/sample.aimodel");
        let mut view = View::open(&path).unwrap();
        view.path = "sample.aimodel".into();
        insta::assert_snapshot!(view);
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["functions"][0]["name"], view.functions[0].name.as_str());
        assert!(json["functions"][0]["unique_bytes"].is_u64());
    }
}
