# One target per study (`mjp`), table (`mjp_table1`) and figure, with all rows, at the scale of --config scale=... or else
# at the first scale of the study. That of a study ends with the study's own report.
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
            [f"results/{SCALE}/{file}" for file in TARGETS[target_name(table)]],
        localrule: True


# A mistyped target is refused here with near names; Snakemake would only say that there is no such rule.
RULES = [rule.name for rule in workflow.rules]
or_message(invocation.check_targets, CALL.targets, RULES, graph(SCALE))
