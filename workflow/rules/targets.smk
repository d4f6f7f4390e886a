# One target per paper (`mjp`) and per table (`mjp_table1`), with all rows, at the scale of --config scale=...
for study in graph(SCALE).studies():

    rule:
        name:
            study
        input:
            [
                f"results/{SCALE}/tables/all/{table}.json"
                for table in graph(SCALE).tables
                if table.startswith(f"{study}.")
            ],
            f"results/{SCALE}/tables/all/{study}.claims.json",
        localrule: True


for table in graph(SCALE).tables:

    rule:
        name:
            table.replace(".t", "_table")
        input:
            f"results/{SCALE}/tables/all/{table}.json",
        localrule: True
