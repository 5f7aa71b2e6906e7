//! The vectors, each case on a server that has not seen its names.

use serde_json::Value;

use super::exchange::{ask, start};
use crate::common::configuration::in_every_configuration;

#[test]
fn every_vector_is_answered_as_written() {
    let cases: Vec<Value> = include_str!("../vectors/dlm-basic.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(cases.len() >= 16, "the vectors were not found");
    in_every_configuration(|configuration| {
        for case in &cases {
            let server = start(configuration, &[]);
            for step in case["steps"].as_array().unwrap() {
                let answer = ask(&server, &step["send"]);
                assert_eq!(
                    answer, step["expect"],
                    "case {}: to {}",
                    case["case"], step["send"]
                );
            }
        }
    });
}
