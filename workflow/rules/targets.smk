# One target per paper (`mjp`), table (`mjp_table1`) and figure, with all rows, at the scale of --config scale=...
for study in graph(SCALE).studies():

    rule:
        name:
            study
        input:
            [f"results/{SCALE}/{file}" for file in TARGETS[study]],
        localrule: True


for table in graph(SCALE).tables:

    rule:
        name:
            target_name(table)
        input:
            f"results/{SCALE}/{table_file(table, 'all')}",
        localrule: True


# A mistyped target is refused here with near names; Snakemake would only say that there is no such rule.
RULES = [rule.name for rule in workflow.rules]
or_message(invocation.check_targets, CALL.targets, RULES, graph(SCALE))
