//! What was asked of the API server and done, as it wrote it down itself, in its own order: its audit log. Who judges
//! where pods went asks it, and nothing of Tidegate's.
//!
//! It writes a line before it answers, and a server that is started again adds to the file of the one before. So
//! nothing that was bound or evicted is missing, whoever looked when.

use super::played::LABEL;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// One thing that it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Did {
    /// A node's label says so many per cent from now on; None: it has no label.
    Says(String, Option<u8>),
    /// The scheduler gave a pod a node.
    Bound {
        /// The pod's name.
        pod: String,
        /// The node's.
        node: String,
    },
    /// A pod was evicted by the Eviction API.
    Evicted(String),
}

/// What it is to write down.
#[must_use]
pub fn policy() -> Value {
    let pods = json!([{"group": "", "resources": ["pods/binding", "pods/eviction"]}]);
    let nodes = json!([{"group": "", "resources": ["nodes"]}]);
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Request", "verbs": ["create"], "resources": pods},
            {"level": "Request", "verbs": ["patch"], "resources": nodes},
            {"level": "None"},
        ],
    })
}

/// What it did.
#[must_use]
pub fn read(log: &Path) -> Vec<Did> {
    let text = fs::read_to_string(log).unwrap_or_default();
    // A line that a kill cut short was not answered.
    let all = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    all.filter_map(|event: Value| did(&event)).collect()
}

fn did(event: &Value) -> Option<Did> {
    let code = event["responseStatus"]["code"].as_u64()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (of, asked) = (&event["objectRef"], &event["requestObject"]);
    let name = text(&of["name"])?;
    if !(200..300).contains(&code) {
        return None;
    }
    match (of["resource"].as_str()?, of["subresource"].as_str()) {
        ("pods", Some("binding")) => Some(Did::Bound {
            pod: name,
            node: text(&asked["target"]["name"])?,
        }),
        ("pods", Some("eviction")) => Some(Did::Evicted(name)),
        // A patch says what changes, and null takes a label away.
        ("nodes", None) => {
            let label = asked["metadata"]["labels"].get(LABEL)?;
            let says = label.as_str().and_then(|text| text.parse().ok());
            Some(Did::Says(name, says))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-CLUSTER-19: the judge notices each of what it is there for, in the API server's own words.
    #[test]
    fn what_the_server_wrote_is_understood() {
        let line = |path: &str, of: &str, code: u16, asked: &str| {
            format!(
                "{{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"level\":\"Request\",\
                 \"stage\":\"ResponseComplete\",\"requestURI\":\"/api/v1/{path}\",\"objectRef\":{{{of},\
                 \"apiVersion\":\"v1\"}},\"responseStatus\":{{\"metadata\":{{}},\"code\":{code}}}{asked},\
                 \"requestReceivedTimestamp\":\"2026-11-25T22:47:06.258272Z\"}}"
            )
        };
        let pod = |sub: &str| {
            format!(
                "\"resource\":\"pods\",\"namespace\":\"default\",\"name\":\"moves-xm4tq\",\"subresource\":\"{sub}\""
            )
        };
        let node = "\"resource\":\"nodes\",\"name\":\"n3\"";
        let label = |value: &str| {
            format!(",\"requestObject\":{{\"metadata\":{{\"labels\":{{\"{LABEL}\":{value}}}}}}}")
        };
        let to = ",\"requestObject\":{\"kind\":\"Binding\",\"target\":{\"kind\":\"Node\",\"name\":\"n3\"}}";
        let other = ",\"requestObject\":{\"metadata\":{\"labels\":{\"other\":\"1\"}}}";
        let status = "\"resource\":\"nodes\",\"name\":\"n3\",\"subresource\":\"status\"";
        let bound = line(
            "namespaces/default/pods/moves-xm4tq/binding",
            &pod("binding"),
            201,
            to,
        );
        let text = [
            line("nodes/n3", node, 200, &label("\"78\"")),
            line("nodes/n3", node, 409, &label("\"90\"")),
            line("nodes/n3", node, 200, other),
            line("nodes/n3/status", status, 200, &label("\"91\"")),
            bound.clone(),
            line(
                "namespaces/default/pods/moves-xm4tq/binding",
                &pod("binding"),
                409,
                to,
            ),
            line(
                "namespaces/default/pods/moves-xm4tq/eviction",
                &pod("eviction"),
                429,
                "",
            ),
            line(
                "namespaces/default/pods/moves-xm4tq/eviction",
                &pod("eviction"),
                201,
                "",
            ),
            line("nodes/n3", node, 200, &label("null")),
            bound[..bound.len() / 2].to_owned(),
        ]
        .join("\n");
        let dir = crate::TempDir::new();
        let log = dir.path().join("audit.log");
        fs::write(&log, text).expect("writable");
        let (name, node) = ("moves-xm4tq".to_owned(), "n3".to_owned());
        let expected = [
            Did::Says(node.clone(), Some(78)),
            Did::Bound {
                pod: name.clone(),
                node: node.clone(),
            },
            Did::Evicted(name),
            Did::Says(node, None),
        ];
        assert_eq!(read(&log), expected);
        assert_eq!(read(&dir.path().join("none")), []);
    }
}
