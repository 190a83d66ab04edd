"""The scripts as server functions: one library of all of them, made of the same Lua files."""
