//! One graph: inputs, body, outputs.

use std::sync::Arc;

use super::composite::Composite;
use super::region::{NewOperation, RegionBuilder};
use crate::error::At;
use crate::mlirb::attributes::Attribute;
use crate::mlirb::ir::{Operation, Properties, ValueId};
use crate::mlirb::names;
use crate::mlirb::types::Type;
use crate::{Error, Result};

/// An input of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    name: Arc<str>,
    ty: Type,
}

impl Input {
    /// A tensor that is handed in.
    pub fn tensor(name: impl Into<Arc<str>>, ty: impl Into<Type>) -> Self {
        Self { name: name.into(), ty: ty.into() }
    }

    /// State that is written in place: its argument is a handle to `contents`. For each state the graph gives back
    /// a token of the same name, in the same order.
    pub fn state(name: impl Into<Arc<str>>, contents: impl Into<Type>) -> Self {
        Self { name: name.into(), ty: Type::handle(contents.into()) }
    }

    fn is_state(&self) -> bool {
        matches!(self.ty, Type::Handle(_))
    }

    fn attributes(&self) -> Attribute {
        let mutation = self.is_state().then(|| named(names::MUTATION_ATTRIBUTE, &self.name));
        Attribute::array(mutation.into_iter().chain([named(names::NAME_ATTRIBUTE, &self.name)]))
    }
}

/// Makes a graph: an entry point of the program, unless it is made private.
#[derive(Debug)]
pub struct GraphBuilder {
    name: Arc<str>,
    inputs: Vec<Input>,
    body: RegionBuilder,
    private: bool,
    no_inline: bool,
    composite: Option<Attribute>,
}

impl GraphBuilder {
    /// A graph with an empty body.
    pub fn new(name: impl Into<Arc<str>>, inputs: Vec<Input>) -> Self {
        let body = RegionBuilder::new(inputs.iter().map(|input| input.ty.clone()));
        Self { name: name.into(), inputs, body, private: false, no_inline: false, composite: None }
    }

    /// Makes it callable by other graphs only.
    #[must_use]
    pub const fn private(mut self) -> Self {
        self.private = true;
        self
    }

    /// Keeps it a function of its own.
    #[must_use]
    pub const fn no_inline(mut self) -> Self {
        self.no_inline = true;
        self
    }

    /// Makes it stand for a composite operation: private and never inlined.
    #[must_use]
    pub fn composite(mut self, composite: Composite) -> Self {
        self.composite = Some(composite.into());
        self.private().no_inline()
    }

    /// The value of the input at `index`.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn input(&self, index: usize) -> Result<ValueId> {
        self.body.argument(index)
    }

    /// The body, to add operations to.
    pub const fn body(&mut self) -> &mut RegionBuilder {
        &mut self.body
    }

    /// Ends the graph with named outputs.
    ///
    /// # Errors
    /// When an output is not a value of the body, or the tokens among them are not those of the states in order.
    pub fn finish(mut self, outputs: &[(&str, ValueId)]) -> Result<Operation> {
        let name = self.name.clone();
        let types = self.output_types(outputs).at(|| format!("graph `{name}`"))?;
        self.body.add(NewOperation::new(names::OUTPUT).operands(outputs.iter().map(|(_, value)| *value)))?;
        let properties = Properties::Known(self.properties(outputs, types));
        Ok(Operation {
            name: names::GRAPH.into(),
            location: Attribute::nowhere(),
            properties,
            operands: Vec::new(),
            results: Vec::new(),
            regions: vec![self.body.finish()],
        })
    }

    fn output_types(&self, outputs: &[(&str, ValueId)]) -> Result<Vec<Type>> {
        let types = outputs.iter().map(|(_, value)| self.body.type_of(*value).cloned()).collect::<Result<Vec<_>>>()?;
        let states: Vec<&str> = self.inputs.iter().filter(|input| input.is_state()).map(|input| &*input.name).collect();
        let tokens = outputs.iter().zip(&types).filter(|(_, ty)| **ty == Type::Token);
        let tokens: Vec<&str> = tokens.map(|((name, _), _)| *name).collect();
        if tokens == states {
            Ok(types)
        } else {
            Err(Error::input("the tokens a graph gives back are not those of its states in order")
                .found(format!("{tokens:?}"))
                .expected(format!("{states:?}")))
        }
    }

    /// In the order of the table of properties: alphabetical.
    fn properties(&self, outputs: &[(&str, ValueId)], results: Vec<Type>) -> Vec<Option<Attribute>> {
        let operands = self.inputs.iter().map(|input| input.ty.clone()).collect();
        let output = |(name, _): &(&str, ValueId)| Attribute::array([named(names::NAME_ATTRIBUTE, &(*name).into())]);
        vec![
            Some(Attribute::array(self.inputs.iter().map(Input::attributes))),
            self.composite.clone(),
            Some(Attribute::flag(false)),
            Some(Attribute::Type(Type::function(operands, results))),
            Some(Attribute::flag(self.private)),
            Some(Attribute::String(self.name.clone())),
            Some(Attribute::flag(self.no_inline)),
            Some(Attribute::array([])),
            Some(Attribute::array(outputs.iter().map(output))),
        ]
    }
}

fn named(attribute: &str, name: &Arc<str>) -> Attribute {
    Attribute::opaque(attribute, vec![Attribute::String(name.clone())])
}
