//! What the functions of a recipe take and give.

use std::collections::BTreeMap;
use std::fmt;

use crate::graph::{Dim, Function, ParameterKind, Symbol, TensorType};
use crate::host::recipe::{Contract, EmbeddingsContract, GridRecipe, Recipe, SlotsContract};
use crate::runtime::Asset;
use crate::{ElementType, Result};

/// What a function takes and gives, by name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Signature {
    pub(super) inputs: Ports,
    pub(super) states: Ports,
    pub(super) results: Ports,
}

/// Types by name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ports(BTreeMap<String, TensorType>);

impl Ports {
    fn new<'n>(ports: impl IntoIterator<Item = (&'n str, TensorType)>) -> Self {
        Self(ports.into_iter().map(|(name, ty)| (name.to_owned(), ty)).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&TensorType> {
        self.0.get(name)
    }
}

impl Signature {
    pub(super) fn of(function: &Function) -> Self {
        let parameters =
            |kind| Ports::new(function.parameters_of(kind).map(|p| (p.name.as_str(), function.ty(p.value).clone())));
        Self {
            inputs: parameters(ParameterKind::Input),
            states: parameters(ParameterKind::State),
            results: Ports::new(function.results.iter().map(|r| (r.name.as_str(), function.ty(r.value).clone()))),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<String> = self.0.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
        f.write_str(&ports.join(", "))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = if self.states.0.is_empty() { "" } else { "; states " };
        write!(f, "({}{states}{}) -> ({})", self.inputs, self.states, self.results)
    }
}

/// A function that a recipe speaks of.
#[derive(Debug)]
pub(super) struct Expected<'r> {
    pub(super) part: Asset,
    pub(super) name: &'r str,
    pub(super) signature: Signature,
}

/// The functions that a recipe speaks of.
pub(super) fn expected(recipe: &Recipe) -> Result<Vec<Expected<'_>>> {
    let types = Types { recipe };
    match &recipe.contract {
        Contract::Embeddings(contract) => types.embeddings(contract),
        Contract::Slots(contract) => {
            let grids = contract.grids.iter().map(|grid| types.slots(contract, grid));
            Ok(grids.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
        }
    }
}

/// Types of inputs and results by the sizes of a recipe.
struct Types<'r> {
    recipe: &'r Recipe,
}

impl<'r> Types<'r> {
    fn float(&self, shape: &[usize]) -> TensorType {
        TensorType::new(self.recipe.element_type, shape)
    }

    fn vision(&self, name: &'r str, input: (&str, &[usize]), result: (&str, &[usize])) -> Expected<'r> {
        let inputs = Ports::new([(input.0, self.float(input.1))]);
        let results = Ports::new([(result.0, self.float(result.1))]);
        Expected { part: Asset::Vision, name, signature: Signature { inputs, states: Ports::new([]), results } }
    }

    fn decoder(&self, name: &'r str, inputs: Ports, logits: (&str, Dim)) -> Expected<'r> {
        let states = self.recipe.states();
        let states = states.each_ref().map(|state| (state.name.as_str(), self.float(&state.shape)));
        let shape = vec![Dim::Fixed(1), logits.1, Dim::Fixed(self.recipe.vocab_size)];
        let results = Ports::new([(logits.0, TensorType { element: self.recipe.element_type, shape })]);
        Expected { part: Asset::Decoder, name, signature: Signature { inputs, states: Ports::new(states), results } }
    }

    fn embeddings(&self, contract: &'r EmbeddingsContract) -> Result<Vec<Expected<'r>>> {
        let EmbeddingsContract { vision, decoder, .. } = contract;
        let side = contract.image.side as usize;
        let hidden = self.recipe.hidden_size;
        let embeds = |tokens| (decoder.inputs_embeds.as_str(), self.float(&[1, tokens, hidden]));
        let position = (decoder.position.as_str(), integers(1));
        let visual_tokens = [1, contract.grid()?.tokens(), hidden];
        let logits = || (decoder.logits.as_str(), Dim::Fixed(1));
        Ok(vec![
            self.vision(
                &vision.function,
                (&vision.image, &[1, 3, side, side]),
                (&vision.visual_tokens, &visual_tokens),
            ),
            self.decoder(&decoder.prefill, Ports::new([embeds(contract.prompt.prefix_length)]), logits()),
            self.decoder(&decoder.decode, Ports::new([embeds(1), position]), logits()),
        ])
    }

    fn slots(&self, contract: &'r SlotsContract, of: &'r GridRecipe) -> Result<Vec<Expected<'r>>> {
        let (page, vision) = (&contract.page, &contract.vision);
        let [patch, frames, merge] = [page.patch, page.frames, page.merge].map(|size| size as usize);
        let image_embeds = [of.grid()?.tokens(), self.recipe.hidden_size];
        let patches = [image_embeds[0] * merge * merge, 3 * frames * patch * patch];
        let seen = self.vision(&of.vision, (&vision.patches, &patches), (&vision.image_embeds, &image_embeds));

        let ids = &contract.decoder;
        let reads = |name: &'r str, tokens: Dim| {
            let row = |extent| TensorType { element: ElementType::I32, shape: vec![Dim::Fixed(1), extent] };
            let inputs = Ports::new([
                (ids.input_ids.as_str(), row(tokens.clone())),
                (ids.position_ids.as_str(), row(any())),
                (ids.image_embeds.as_str(), self.float(&image_embeds)),
                (ids.rope_shift_start.as_str(), integers(1)),
                (ids.rope_shift_amount.as_str(), integers(1)),
            ]);
            self.decoder(name, inputs, (&ids.logits, tokens))
        };
        let functions = &of.decoder;
        let dynamic = functions.dynamic.as_ref().map(|name| reads(name, any()));
        let step = functions.step.as_ref().map(|name| reads(name, Dim::Fixed(1)));
        let prefill = functions.prefill.as_ref().map(|chunk| reads(&chunk.function, Dim::Fixed(chunk.tokens)));
        Ok([Some(seen), dynamic, step, prefill].into_iter().flatten().collect())
    }
}

fn integers(length: usize) -> TensorType {
    TensorType::new(ElementType::I32, &[length])
}

/// The extent of an axis that is chosen at run time, as a program has it: without name and bounds.
fn any() -> Dim {
    Dim::Symbol(Symbol::unknown())
}
