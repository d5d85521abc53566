//! The table of interned recipes.

use std::collections::{BTreeSet, HashMap};

use super::{Recipe, Resampling, TensorIndex, WeightId};
use crate::quant::Coding;
use crate::storage::StoredTensor;
use crate::{ElementType, Error, Result};

/// The weights of a module: interned recipes over stored tensors.
///
/// Adding is the only way to change it, and the type of a recipe is checked when it is added, so every recipe in the
/// table can be made. Only floating-point weights are moved about; codes, scales and views come last.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    tensors: Vec<StoredTensor>,
    by_place: HashMap<Place, TensorIndex>,
    entries: Vec<Entry>,
    by_recipe: HashMap<Recipe, WeightId>,
    names: HashMap<WeightId, String>,
    remarks: HashMap<WeightId, String>,
    finite: BTreeSet<TensorIndex>,
}

/// Name of the source, offset, element type and shape of a stored tensor. An empty tensor shares its offset with the
/// next one, so the offset alone does not tell tensors apart.
type Place = (String, u64, ElementType, Vec<usize>);

#[derive(Debug, Clone)]
struct Entry {
    recipe: Recipe,
    element: ElementType,
    shape: Vec<usize>,
}

impl Weights {
    /// The recipe of a weight.
    #[must_use]
    pub fn recipe(&self, id: WeightId) -> &Recipe {
        &self.entries[id.index()].recipe
    }

    /// Type of one element of a weight.
    #[must_use]
    pub fn element(&self, id: WeightId) -> ElementType {
        self.entries[id.index()].element
    }

    /// Extents of a weight.
    #[must_use]
    pub fn shape(&self, id: WeightId) -> &[usize] {
        &self.entries[id.index()].shape
    }

    /// Number of elements of a weight.
    #[must_use]
    pub fn elements(&self, id: WeightId) -> usize {
        self.shape(id).iter().product()
    }

    /// Bytes of a weight as stored.
    #[must_use]
    pub fn bytes(&self, id: WeightId) -> u64 {
        self.elements(id) as u64 * self.element(id).size() as u64
    }

    /// The stored tensor behind a [`Recipe::Read`].
    #[must_use]
    pub fn tensor(&self, index: TensorIndex) -> &StoredTensor {
        &self.tensors[index.0 as usize]
    }

    /// The weight whose bytes `id` shows: reshapes and views share the bytes of what they are made of.
    #[must_use]
    pub fn storage(&self, mut id: WeightId) -> WeightId {
        while let Recipe::Reshape { of, .. } | Recipe::View { of, .. } = self.recipe(id) {
            id = *of;
        }
        id
    }

    /// Names a weight that is a parameter of the model but not a tensor of its own, such as a part of a packed one.
    pub fn set_name(&mut self, id: WeightId, name: String) {
        self.names.insert(id, name);
    }

    /// The name given to a weight, if there is one.
    #[must_use]
    pub fn name(&self, id: WeightId) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    /// Sets what people should know about the way a weight is stored.
    pub fn set_remark(&mut self, id: WeightId, remark: Option<String>) {
        match remark {
            Some(remark) => drop(self.remarks.insert(id, remark)),
            None => drop(self.remarks.remove(&id)),
        }
    }

    /// What people should know about the way a weight is stored, if there is anything.
    #[must_use]
    pub fn remark(&self, id: WeightId) -> Option<&str> {
        self.remarks.get(&id).map(String::as_str)
    }

    /// The name of the parameter that a weight is: the one given to it, else that of the only tensor it is made of.
    #[must_use]
    pub fn parameter_name(&self, id: WeightId) -> Option<&str> {
        self.name(id).or_else(|| match self.sources(id).as_slice() {
            &[source] => Some(&*self.tensor(source).name),
            _ => None,
        })
    }

    /// The stored tensors a weight is made of, each once, in the order of the table.
    #[must_use]
    pub fn sources(&self, id: WeightId) -> Vec<TensorIndex> {
        let mut found = BTreeSet::new();
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let recipe = self.recipe(id);
            if let Recipe::Read(index) = recipe {
                found.insert(*index);
            }
            pending.extend_from_slice(recipe.inputs());
        }
        found.into_iter().collect()
    }

    /// A tensor as it is stored. The same place in the same source is the same weight.
    pub fn read(&mut self, tensor: &StoredTensor) -> WeightId {
        let place = (tensor.source.name().to_owned(), tensor.offset, tensor.element, tensor.shape.clone());
        let index = *self.by_place.entry(place).or_insert_with(|| {
            self.tensors.push(tensor.clone());
            TensorIndex(self.tensors.len() as u32 - 1)
        });
        self.intern(Recipe::Read(index), tensor.element, tensor.shape.clone())
    }

    /// As [`Weights::read`], of a parameter: a NaN or infinity in it is an error when it is read. Tables of a program
    /// may hold infinities, as masks do.
    pub fn read_parameter(&mut self, tensor: &StoredTensor) -> WeightId {
        let id = self.read(tensor);
        if let Recipe::Read(index) = *self.recipe(id) {
            self.finite.insert(index);
        }
        id
    }

    /// Whether a NaN or infinity in a stored tensor is an error.
    pub(super) fn is_parameter(&self, index: TensorIndex) -> bool {
        self.finite.contains(&index)
    }

    /// Bytes known at export.
    ///
    /// # Errors
    /// When the number of bytes does not fit the shape.
    pub fn literal(&mut self, element: ElementType, shape: &[usize], bytes: Vec<u8>) -> Result<WeightId> {
        let expected = shape.iter().product::<usize>() * element.size();
        if bytes.len() != expected {
            return Err(Error::input("a literal has the wrong size").found(bytes.len()).expected(expected));
        }
        let recipe = Recipe::Literal { element, shape: shape.to_vec(), bytes: bytes.into() };
        Ok(self.intern(recipe, element, shape.to_vec()))
    }

    /// A literal of single-precision numbers.
    ///
    /// # Errors
    /// When the number of values does not fit the shape.
    pub fn literal_f32(&mut self, shape: &[usize], values: &[f32]) -> Result<WeightId> {
        self.literal(ElementType::F32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// A literal of 32-bit integers.
    ///
    /// # Errors
    /// When the number of values does not fit the shape.
    pub fn literal_i32(&mut self, shape: &[usize], values: &[i32]) -> Result<WeightId> {
        self.literal(ElementType::I32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Rows `begin..end` of the first axis.
    ///
    /// # Errors
    /// When the weight has no such rows.
    pub fn rows(&mut self, of: WeightId, begin: usize, end: usize) -> Result<WeightId> {
        let mut shape = self.shape(of).to_vec();
        match shape.first_mut() {
            Some(rows) if begin <= end && end <= *rows && self.element(of).is_float() => *rows = end - begin,
            _ => return Err(self.mismatch(of, "rows taken", format!("{begin}..{end}"))),
        }
        Ok(self.intern(Recipe::Rows { of, begin, end }, self.element(of), shape))
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// When the number of elements differs.
    pub fn reshape(&mut self, of: WeightId, shape: &[usize]) -> Result<WeightId> {
        if shape == self.shape(of) {
            return Ok(of);
        }
        if shape.iter().product::<usize>() != self.elements(of) {
            return Err(self.mismatch(of, "reshape", format!("{shape:?}")));
        }
        let of = match self.recipe(of) {
            Recipe::Reshape { of, .. } => *of,
            _ => of,
        };
        if shape == self.shape(of) {
            return Ok(of);
        }
        Ok(self.intern(Recipe::Reshape { of, shape: shape.to_vec() }, self.element(of), shape.to_vec()))
    }

    /// Weights joined along the first axis.
    ///
    /// # Errors
    /// When there are none, or their types differ beyond the first axis.
    pub fn concat(&mut self, parts: Vec<WeightId>) -> Result<WeightId> {
        let Some(&first) = parts.first() else {
            return Err(Error::input("nothing to concatenate"));
        };
        let (element, mut shape) = (self.element(first), self.shape(first).to_vec());
        let mut rows = 0;
        for &part in &parts {
            let alike = self.element(part) == element && element.is_float();
            match self.shape(part) {
                [part_rows, rest @ ..] if alike && Some(rest) == shape.get(1..) => rows += part_rows,
                _ => return Err(self.mismatch(part, "concatenated weights", self.describe(first))),
            }
        }
        shape[0] = rows;
        Ok(self.intern(Recipe::Concat(parts), element, shape))
    }

    /// Weights of one type stacked along a new first axis.
    ///
    /// # Errors
    /// As [`Weights::concat`].
    pub fn stack(&mut self, parts: &[WeightId]) -> Result<WeightId> {
        let mut rows = Vec::with_capacity(parts.len());
        for &part in parts {
            let shape: Vec<usize> = std::iter::once(1).chain(self.shape(part).iter().copied()).collect();
            rows.push(self.reshape(part, &shape)?);
        }
        self.concat(rows)
    }

    /// Zeros appended to `axis` up to extent `to`.
    ///
    /// # Errors
    /// When there is no such axis or it is longer already.
    pub fn pad(&mut self, of: WeightId, axis: usize, to: usize) -> Result<WeightId> {
        let mut shape = self.shape(of).to_vec();
        match shape.get_mut(axis) {
            Some(extent) if *extent == to => return Ok(of),
            Some(extent) if *extent < to && self.element(of).is_float() => *extent = to,
            _ => return Err(self.mismatch(of, "padding", format!("axis {axis} of {to}"))),
        }
        Ok(self.intern(Recipe::Pad { of, axis, to }, self.element(of), shape))
    }

    /// Another floating-point type.
    ///
    /// # Errors
    /// When either type is not a floating-point type.
    pub fn cast(&mut self, of: WeightId, to: ElementType) -> Result<WeightId> {
        let from = self.element(of);
        if from == to {
            return Ok(of);
        }
        if !from.is_float() || !to.is_float() {
            return Err(self.mismatch(of, "cast", format!("{to}")));
        }
        Ok(self.intern(Recipe::Cast { of, to }, to, self.shape(of).to_vec()))
    }

    /// A table of positions `[n.., c]` resampled to `[to.., c]`, in f32; unchanged where the sizes are equal.
    ///
    /// # Errors
    /// When the table is not of floating-point numbers or has other axes than `to` and one more.
    pub fn resample(&mut self, of: WeightId, kind: Resampling, to: &[usize]) -> Result<WeightId> {
        let shape = self.shape(of);
        let axes_fit = shape.len() == to.len() + 1 && to.len() == kind.axes() && !shape.contains(&0);
        if !axes_fit || to.contains(&0) || !self.element(of).is_float() {
            return Err(self.mismatch(of, "resampling", format!("{to:?}")));
        }
        if shape[..to.len()] == *to {
            return Ok(of);
        }
        let new_shape: Vec<usize> = to.iter().chain(shape.last()).copied().collect();
        Ok(self.intern(Recipe::Resample { of, kind, to: to.to_vec() }, ElementType::F32, new_shape))
    }

    /// Rows of a table picked by number.
    ///
    /// # Errors
    /// When a number is out of range or there are not as many as `shape` has places.
    pub fn take(&mut self, of: WeightId, indices: Vec<u32>, shape: &[usize]) -> Result<WeightId> {
        let fail = || self.mismatch(of, "rows taken", format!("{} places of {shape:?}", indices.len()));
        let [rows, row @ ..] = self.shape(of) else {
            return Err(fail());
        };
        let in_range = indices.iter().all(|&i| (i as usize) < *rows);
        if indices.len() != shape.iter().product::<usize>() || !in_range || !self.element(of).is_float() {
            return Err(fail());
        }
        let new_shape = shape.iter().chain(row).copied().collect();
        let recipe = Recipe::Take { of, indices: indices.into(), shape: shape.to_vec() };
        Ok(self.intern(recipe, self.element(of), new_shape))
    }

    /// Codes and scales of a weight quantised in blocks along the last axis.
    ///
    /// # Errors
    /// When the weight is not of floating-point numbers or the block does not divide the last axis.
    pub fn quantise(&mut self, of: WeightId, coding: impl Into<Coding>) -> Result<(WeightId, WeightId)> {
        let coding = coding.into();
        let block = coding.block();
        let mut scales = self.shape(of).to_vec();
        match scales.last_mut() {
            Some(last) if *last % block == 0 && self.element(of).is_float() => *last /= block,
            _ => return Err(self.mismatch(of, "quantising", format!("blocks of {block}"))),
        }
        let codes_shape = self.shape(of).to_vec();
        let codes = self.intern(Recipe::Codes { of, coding }, ElementType::I8, codes_shape);
        Ok((codes, self.intern(Recipe::Scales { of, coding }, ElementType::F16, scales)))
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// When the last axis has not a whole number of such elements.
    pub fn view(&mut self, of: WeightId, element: ElementType) -> Result<WeightId> {
        let mut shape = self.shape(of).to_vec();
        match shape.last_mut() {
            Some(last) if (*last * self.element(of).size()).is_multiple_of(element.size()) => {
                *last = *last * self.element(of).size() / element.size();
            }
            _ => return Err(self.mismatch(of, "view", format!("{element}"))),
        }
        Ok(self.intern(Recipe::View { of, element }, element, shape))
    }

    /// The type of a weight as text: `bf16[64,1280]`.
    #[must_use]
    pub fn describe(&self, id: WeightId) -> String {
        let shape: Vec<String> = self.shape(id).iter().map(ToString::to_string).collect();
        format!("{}[{}]", self.element(id), shape.join(","))
    }

    fn intern(&mut self, recipe: Recipe, element: ElementType, shape: Vec<usize>) -> WeightId {
        if let Some(&id) = self.by_recipe.get(&recipe) {
            return id;
        }
        let id = WeightId(self.entries.len() as u32);
        self.by_recipe.insert(recipe.clone(), id);
        self.entries.push(Entry { recipe, element, shape });
        id
    }

    fn mismatch(&self, id: WeightId, what: &str, wanted: String) -> Error {
        let error = Error::input(format!("the shapes do not fit: {what}")).found(self.describe(id)).expected(wanted);
        match self.sources(id).first() {
            Some(&source) => error.at(format!("tensor `{}`", self.tensor(source).name)),
            None => error,
        }
    }
}
