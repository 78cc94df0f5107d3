//! The published schemas of the reports, as strict as a test needs them: a key that a schema does not describe is an
//! error. For readers the schemas are open, because later versions add keys.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

/// What forbids keys that no part of a schema describes.
const CLOSED: &str = "unevaluatedProperties";

/// The schemas by the names of their files, such as `run-1.json`.
pub(crate) fn all() -> BTreeMap<String, Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let schema = serde_json::from_str(&fs::read_to_string(&path).unwrap());
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (
            name,
            schema.unwrap_or_else(|error| panic!("{path:?}: {error}")),
        )
    });
    files.collect()
}

/// Whether a report follows the schema in a file, without keys that it does not describe; and why it does not.
pub(crate) fn check(file: &str, report: &Value) -> Result<(), String> {
    let mut all = all();
    let mut parts = BTreeSet::new();
    all.values()
        .for_each(|schema| find_parts(schema, &mut parts));
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    for (name, schema) in &mut all {
        close(schema, &parts);
        let place = format!("file:///schema/{name}");
        compiler.add_resource(&place, schema.clone()).unwrap();
    }
    let place = format!("file:///schema/{file}");
    let compiled = compiler.compile(&place, &mut schemas);
    let compiled = compiled.unwrap_or_else(|error| panic!("{file}: {error}"));
    let checked = schemas.validate(report, compiled);
    checked.map_err(|error| format!("{file}: {error}"))
}

/// The names of the definitions to which an `allOf` refers: parts of other objects, which have further keys.
fn find_parts(schema: &Value, parts: &mut BTreeSet<String>) {
    let referred = schema["allOf"].as_array().into_iter().flatten();
    let names = referred.filter_map(|it| it["$ref"].as_str()?.rsplit('/').next());
    parts.extend(names.map(str::to_owned));
    match schema {
        Value::Object(object) => object.values().for_each(|it| find_parts(it, parts)),
        Value::Array(list) => list.iter().for_each(|it| find_parts(it, parts)),
        _ => {}
    }
}

/// Forbids keys that are not described, in the objects that use `parts` and not in the parts themselves.
fn close(schema: &mut Value, parts: &BTreeSet<String>) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object.iter_mut() {
                match value {
                    Value::Object(definitions) if key == "$defs" => {
                        for (name, definition) in definitions {
                            close(definition, parts);
                            if parts.contains(name) {
                                definition.as_object_mut().unwrap().remove(CLOSED);
                            }
                        }
                    }
                    other => close(other, parts),
                }
            }
            let has_properties = object.get("properties").is_some_and(Value::is_object);
            if has_properties || object.contains_key("allOf") {
                object.insert(CLOSED.to_owned(), false.into());
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|it| close(it, parts)),
        _ => {}
    }
}
