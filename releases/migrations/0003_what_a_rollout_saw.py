from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('releases', '0002_idempotency_and_immutability'),
    ]

    operations = [
        migrations.AddField(
            model_name='stage',
            name='draining',
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name='rollout',
            name='verdicts',
            field=models.JSONField(default=list),
        ),
    ]
