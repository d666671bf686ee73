"""The contract on disk: what an exported artifact folder holds, validated reading and atomic writing."""
