//! A classifier in a settings file: its name, and the fields of that network.

use kiln_models::{ClassifierConfig, Error};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

pub(super) fn serialize<S: Serializer>(config: &ClassifierConfig, serializer: S) -> Result<S::Ok, S::Error> {
    let fields = match config {
        ClassifierConfig::ResNet(config) => serde_json::to_value(config),
        ClassifierConfig::MobileNetV2(config) => serde_json::to_value(config),
        ClassifierConfig::MobileNetV3(config) => serde_json::to_value(config),
        ClassifierConfig::ShuffleNetV2(config) => serde_json::to_value(config),
        ClassifierConfig::Vit(config) => serde_json::to_value(config),
        _ => return Err(S::Error::custom(format!("no settings for '{}'", config.name()))),
    };
    let mut fields = fields.map_err(S::Error::custom)?;
    if let Value::Object(fields) = &mut fields {
        fields.insert("name".into(), config.name().into());
    }
    fields.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClassifierConfig, D::Error> {
    fn read<E: serde::de::Error, T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, E> {
        T::deserialize(Value::Object(fields)).map_err(E::custom)
    }
    let mut fields = Map::deserialize(deserializer)?;
    let name = match fields.get("name") {
        Some(Value::String(name)) => name.clone(),
        Some(other) => return Err(D::Error::custom(format!("name is {other}, expected {}", ClassifierConfig::NAMES))),
        None => return Err(D::Error::missing_field("name")),
    };
    if name.starts_with("resnet") {
        return read(fields).map(ClassifierConfig::ResNet);
    }
    fields.remove("name");
    match name.as_str() {
        "mobilenet_v2" => read(fields).map(ClassifierConfig::MobileNetV2),
        "mobilenet_v3_large" => read(fields).map(ClassifierConfig::MobileNetV3),
        name if name.starts_with("shufflenet_v2") => read(fields).map(ClassifierConfig::ShuffleNetV2),
        name if name.starts_with("vit") => read(fields).map(ClassifierConfig::Vit),
        _ => Err(D::Error::custom(Error::UnknownModel { name, expected: ClassifierConfig::NAMES })),
    }
}
