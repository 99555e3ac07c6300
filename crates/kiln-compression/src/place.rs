//! Where a visitor or a mapper is in a module.

/// The way from the model to where a visitor is. A visitor calls [`enter`](Self::enter) and [`leave`](Self::leave) in `enter_module` and
/// `exit_module`.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Names of fields, and what kind of module holds each: `Struct:Linear`, `Vec`, `Reparameterization`.
    stack: Vec<(String, String)>,
}

impl Place {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.stack.push((name.to_owned(), container.to_owned()));
    }

    pub(crate) fn leave(&mut self) {
        self.stack.pop();
    }

    /// The path of the parameter: names of fields joined by dots, as `layer1.0.conv1.weight`. What belongs to a reparameterization has
    /// the path of the parameter that it changes.
    pub(crate) fn parameter(&self) -> String {
        let outside = self.stack.iter().take_while(|(_, container)| container != "Reparameterization");
        outside.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".")
    }

    /// The type of the module around the value: `Conv2d`, or the type of a reparameterization.
    pub(crate) fn kind(&self) -> &str {
        self.stack.last().and_then(|(_, container)| container.strip_prefix("Struct:")).unwrap_or_default()
    }

    /// The name of the field of the value.
    pub(crate) fn field(&self) -> &str {
        self.stack.last().map_or("", |(name, _)| name)
    }

    /// Whether the value belongs to a reparameterization and is not the parameter itself.
    pub(crate) fn is_inner(&self) -> bool {
        self.stack.iter().any(|(_, container)| container == "Reparameterization")
    }
}
